// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// writtenFile is a line of training_arguments_files.jsonl: what transformers writes for an argument with a value.
type writtenFile struct {
	Name    string
	Given   map[string]json.RawMessage
	Written map[string]json.RawMessage
}

// text is the whole file, which has the defaults of the other arguments.
func (w writtenFile) text(t *testing.T) string {
	t.Helper()
	defaults, err := os.ReadFile(filepath.Join("testdata", "training_args.json"))
	require.NoError(t, err)
	all := map[string]json.RawMessage{}
	require.NoError(t, json.Unmarshal(defaults, &all))
	maps.Copy(all, w.Written)
	text, err := json.Marshal(all)
	require.NoError(t, err)
	return string(text)
}

func writtenFiles(t *testing.T) (files []writtenFile) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "training_arguments_files.jsonl"))
	require.NoError(t, err)
	lines := bufio.NewScanner(bytes.NewReader(text))
	require.True(t, lines.Scan(), "the first line has the version")
	for lines.Scan() {
		var w writtenFile
		require.NoError(t, json.Unmarshal(lines.Bytes(), &w), lines.Text())
		files = append(files, w)
	}
	return files
}

// notBuilt are the arguments that transformers writes with values that are an error here, with what the error says.
var notBuilt = map[string]string{
	"push_to_hub":                   "not built yet",
	"debug":                         "want underflow_overflow, or nothing",
	"optim_target_modules":          "not built yet",
	"average_tokens_across_devices": "want true",
	"optim":                         "is refused: ",
	"report_to":                     "want none, all, or names from jsonl",
	"log_level":                     "is not built yet", "log_level_replica": "is not built yet",
	"train_sampling_strategy": "is not built yet", "ddp_backend": "is not built yet",
	"accelerator_config": "no gradient_accumulation_kwargs: the setting is gradient_accumulation_steps",
}

// Every file that transformers writes loads, with the value in its place, or with an error that names the argument
// alone and says that its value is not built.
func TestFilesOfTransformers(t *testing.T) {
	files := writtenFiles(t)
	require.Greater(t, len(files), 400)
	failed := map[string]bool{}
	for _, w := range files {
		text := w.text(t)
		p := newProgram(nil, map[string]string{"ds.json": `{"zero_optimization": {"stage": 2}}`, "a.json": text})
		p.loader.ForProgram(args.Program{Reporters: []string{"jsonl", "tensorboard"}, Engines: []string{"nccl", "mpi"}})
		p.parse("a.json")
		if p.err != nil {
			failed[w.Name] = true
			reason := notBuilt[w.Name]
			require.NotEmpty(t, reason, "%s %s: %v", w.Name, w.Given[w.Name], p.err)
			for _, line := range faultLines(t, p.err) {
				require.Contains(t, line, w.Name+" is ")
				require.Contains(t, line, reason)
			}
			continue
		}
		back, err := args.FromJSON([]byte(text))
		require.NoError(t, err, "FromJSON: %s %s", w.Name, w.Given[w.Name])
		raw, differs := w.Written[w.Name]
		value := reflectField(p.train, w.Name)
		if !differs || !value.IsValid() || isFile(w.Name) {
			continue // the default, or no field of ours
		}
		require.Equal(t, value.Interface(), reflectField(back, w.Name).Interface(), w.Name)
		got, err := json.Marshal(value.Interface())
		require.NoError(t, err)
		require.Equal(t, plain(t, raw), plain(t, got), w.Name)
	}
	for name := range notBuilt {
		require.True(t, failed[name], "every value of %s loads", name)
	}
}

// isFile reports whether a setting names a file of another tool, or drops what is a default in an object.
func isFile(name string) bool {
	return slices.Contains([]string{"fsdp", "fsdp_config", "deepspeed", "accelerator_config"}, name)
}

// plain is a JSON value without what has no effect: an empty list, object or text is nil.
func plain(t *testing.T, raw []byte) (value any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(raw, &value))
	switch text := strings.TrimSpace(string(raw)); text {
	case "[]", "{}", `""`:
		return nil
	}
	return value
}

// reflectField is the field with a key, or nothing.
func reflectField(a *args.TrainingArguments, key string) reflect.Value {
	v := reflect.ValueOf(a).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("json") == key {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// The files of fsdp, which is true for every form in transformers 5.24, have the strategy that was asked for.
func TestFSDPOfTransformers(t *testing.T) {
	strategies := map[string]args.ShardStrategy{"full_shard": args.FullShard, "shard_grad_op": args.ShardGradOp,
		"hybrid_shard": args.FullShard, "hybrid_shard_zero2": args.ShardGradOp, "true": args.FullShard}
	seen := map[string]bool{}
	for _, w := range writtenFiles(t) {
		if w.Name != "fsdp" {
			continue
		}
		p := newProgram(nil, map[string]string{"a.json": w.text(t)}).parse("a.json")
		require.NoError(t, p.err, string(w.Given["fsdp"]))
		want := args.NoShard
		for _, word := range strings.FieldsFunc(string(w.Given["fsdp"]), func(r rune) bool {
			return strings.ContainsRune(`", []`, r)
		}) {
			if s, ok := strategies[word]; ok {
				want, seen[word] = s, true
			}
		}
		given := string(w.Given["fsdp"])
		require.Equal(t, want, p.train.ShardStrategy(), given)
		require.Equal(t, strings.Contains(given, "hybrid"), p.train.Hybrid(), given)
		require.Equal(t, strings.Contains(given, "offload"), p.train.OffloadParams == args.OffloadCPU, given)
	}
	require.Len(t, seen, len(strategies))
}

// fsdp is a switch, too: on the command line, in variables and in files.
func TestFSDPSwitch(t *testing.T) {
	for _, argv := range [][]string{{"--fsdp"}, {"--fsdp", "--seed", "7"}, {"--fsdp", "true"}, {"--fsdp=True"}} {
		p := newProgram(nil, nil).parse(argv...)
		require.NoError(t, p.err, argv)
		require.Equal(t, args.FullShard, p.train.ShardStrategy(), argv)
	}
	p := newProgram(nil, map[string]string{"f.yaml": "fsdp: true\nfsdp_config: {reshard_after_forward: false, " +
		"activation_checkpointing: true}\ngradient_checkpointing: false\n"})
	require.NoError(t, p.parse("--config", "f.yaml").err)
	require.Equal(t, args.ShardGradOp, p.train.ShardStrategy())
	require.True(t, p.train.GradientCheckpointing, "false is HuggingFace's default, which every file has")

	p = newProgram(nil, map[string]string{"f.yaml": "fsdp_config: {reshard_after_forward: true}\n"})
	require.NoError(t, p.parse("--config", "f.yaml").err)
	require.Equal(t, args.NoShard, p.train.ShardStrategy())
	require.Equal(t, "fsdp_config (file f.yaml) has no effect: fsdp is not on", p.resolved.Notices[0].String())

	p = newProgram(nil, nil).parse("--fsdp", "--fsdp_config", `{"activation_checkpointing": true}`,
		"--gradient_checkpointing", "false")
	require.ErrorContains(t, p.err, "gradient_checkpointing is false (flag --gradient_checkpointing): want true")
	p = newProgram(nil, nil).parse("--train_file")
	require.ErrorContains(t, p.err, "missing value of flag --train_file")
}
