// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// Every argument of trl's trainers and of peft's adapters, and every flag of accelerate launch, is known
// (testdata/libraries.py).
func TestNamesOfLibraries(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "libraries.tsv"))
	require.NoError(t, err)
	rows, count := map[string]args.Known{}, 0
	for _, k := range args.Libraries() {
		require.NotContains(t, rows, k.Name, "twice")
		require.NotContains(t, knownRows(), k.Name, "HuggingFace's own")
		rows[k.Name] = k
	}
	fields := settings(t)
	for line := range strings.Lines(string(text)) {
		name := strings.Split(strings.TrimSpace(line), "\t")[1]
		count++
		_, ours := fields[name]
		_, known := rows[name]
		// a program's own: what to train, and in which dtype
		programs := strings.Contains("model_name_or_path model_revision trust_remote_code dtype dataset_name", name)
		_, theirs := knownRows()[name] // HuggingFace's
		require.True(t, ours || known || theirs || programs, "%s is unknown", line)
	}
	require.Greater(t, count, 500)
}

// What happens to such a name is said as it is of HuggingFace's.
func TestLibraryFlags(t *testing.T) {
	for argv, want := range map[string]string{
		"--use_peft":                           "use_peft is true (flag --use_peft); not built yet: adapters",
		"--lora_r 64":                          "lora_r is 64 (flag --lora_r); not built yet: adapters in this program",
		"--use_dora":                           "not built yet: adapters by this name: want use_peft, lora_r",
		"--load_in_4bit true":                  "quantized weights by this name: want dtype bfloat16, or q8_0 in",
		"--num_processes 4":                    "want lockstep launch --nproc_per_node N before the program",
		"--mixed_precision bf16":               "want bf16 true or fp16 true",
		"--mixed_precision no":                 "",
		"--max_seq_length 512":                 "not built yet: a length of texts by this name",
		"--attn_implementation sdpa":           "",
		"--data_path alpaca.json":              "",
		"--num_epochs 2 --micro_batch_size 4":  "",
		"--offload_optimizer_device nvme":      "",
		"--zero3_init_flag true":               "",
		"--beta 0.1":                           "training on preferences in this program: want examples/dpo",
		"--f_divergence_type x":                "not built yet: KTO, ORPO and other losses of preferences",
		"--scale_rewards group":                "not built yet: reinforcement learning (GRPO, RLOO)",
		"--use_vllm":                           "not built yet: texts that are generated in training",
		"--seq_kd true":                        "not built yet: distillation from a teacher model",
		"--use_vllm false":                     "",
		"--init_lora_weights":                  "not built yet: adapters by this name: want use_peft, lora_r",
		"--megatron_lm_tp_degree 2":            "",
		"--fp8_format HYBRID":                  "",
		"--parallelism_config_tp_size 1":       "",
		"--parallelism_config_tp_size 2":       "",
		"--parallelism_config_dp_shard_size 4": "",
		"--tpu":                                "want device cpu or cuda",
		"--packing":                            "not built yet: packing of short texts",
		"--ddp_timeout 180000000":              "",
	} {
		p := newProgram(nil, nil).parse(strings.Fields(argv)...)
		if want == "" {
			require.NoError(t, p.err, argv)
			continue
		}
		require.Len(t, faultLines(t, p.err), 1, argv)
		require.ErrorContains(t, p.err, want)
	}
	p := newProgram(nil, nil).parse("--data_path", "a.json", "--num_epochs", "2", "--offload_param_device", "nvme")
	require.NoError(t, p.err)
	require.Equal(t, []string{"a.json"}, p.data.TrainFile)
	require.EqualValues(t, 2, p.train.NumTrainEpochs)
	require.Equal(t, args.OffloadDisk, p.train.OffloadParams)
}

// A program without a part says what it lacks, and how to get it.
func TestWhatAProgramLacks(t *testing.T) {
	p := newProgram(nil, nil)
	p.loader.ForProgram(args.Program{Devices: []string{"cpu"}})
	require.Equal(t, []string{
		`report_to is "tensorboard" (flag --report_to): want none: this program has no reporters (it imports no ` +
			`package of integrations)`,
		`device is "cuda" (flag --device): want one of auto, cpu, which are what this program has; cuda needs a GPU ` +
			`and a program that imports tensor/cuda and is built with -tags cuda (docs/gpu.md)`,
	}, faultLines(t, p.parse("--report_to", "tensorboard", "--device", "cuda").err))
}
