// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
)

// write makes a file in a new folder.
func write(t testing.TB, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o666))
	return file
}

func TestBadFlags(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want []string
	}{
		{[]string{"--bach_size", "3"}, []string{"unknown flag --bach_size; did you mean --block_size?"}},
		{[]string{"--learning_rat=3"}, []string{"unknown flag --learning_rat; did you mean --learning_rate?"}},
		{[]string{"--optim", "addamw"}, []string{`optim is "addamw" (flag --optim): want one of adamw_torch, `}},
		{[]string{"--lr_scheduler_type", "cosin"}, []string{`lr_scheduler_type is "cosin"`, "want one of constant, "}},
		{[]string{"--per_device_train_batch_size", "-3"},
			[]string{"per_device_train_batch_size is -3", "want a whole number ≥ 1"}},
		{[]string{"--per_device_eval_batch_size", "-3"},
			[]string{"per_device_eval_batch_size is -3", "want a whole number ≥ 1"}},
		{[]string{"--max_grad_norm", "ten"}, []string{`max_grad_norm is "ten"`, "want a finite number"}},
		{[]string{"--n_head", "3"}, []string{"n_embd is 32", "want a positive multiple of n_head"}},
		{[]string{"--top_p", "1.5"}, []string{"top_p is 1.5", "want a probability"}},
		{[]string{"--report_to", "nowhere"}, []string{`report_to is "nowhere"`,
			"want none, all, or names from jsonl, mlflow"}},
		{[]string{"--seed"}, []string{"missing value of flag --seed"}},
		{[]string{"text.txt"}, []string{`unexpected argument "text.txt": want flags only`}},
		{[]string{"--config", "absent.yaml"}, []string{"config file", "absent.yaml"}},
		{[]string{"--per_device_train_batch_size", "-3", "--optim", "foo", "--adam_epsilon", "x", "--n_layer", "0"},
			[]string{
				"4 faults:\n", "per_device_train_batch_size is -3", `optim is "foo"`, `adam_epsilon is "x"`,
				"n_layer is 0",
			}},
	} {
		out := filepath.Join(t.TempDir(), "out")
		requireOneError(t, clm(t, tiny(t, out, c.argv...)...), 2, c.want...)
		left, err := filepath.Glob(filepath.Join(out, "*"))
		require.NoError(t, err)
		require.Empty(t, left, "%s: nothing is written", c.argv)
	}
	require.Contains(t, succeed(t, "--help").stdout, "--per_device_train_batch_size")
}

func TestBadText(t *testing.T) {
	good := write(t, "good.txt", "A text that is good.\n")
	empty, binary, short := write(t, "empty.txt", ""), write(t, "binary.txt", "ab\xffcd"), write(t, "short.txt", "hi")
	for _, c := range []struct {
		train, validation string
		want              []string
	}{
		{empty, good, []string{empty + " is empty"}},
		{good, empty, []string{empty + " is empty"}},
		{binary, good, []string{binary + " is not UTF-8: byte 0xFF at offset 2"}},
		{good, binary, []string{binary + " is not UTF-8: byte 0xFF at offset 2"}},
		{short, good,
			[]string{"dataset has 4 tokens, shorter than one block of 32; use more text or a smaller block_size"}},
		{"absent.txt", good, []string{"absent.txt: no such file"}},
		{"absent*.txt", good, []string{`no file matches "absent*.txt"`}},
		{t.TempDir(), good, []string{"has no files"}},
		{write(t, "a.jsonl", "{\"n\": 1}\n"), good, []string{`a.jsonl: line 1: none of the columns n holds texts`}},
		{write(t, "a.jsonl", "{\"text\": "), good, []string{"a.jsonl: line 1: the JSON object that begins here"}},
		{good, good, []string{good + " is both in train_file and in validation_file"}},
		{good, "", []string{"shorter than one block of 32"}},
		{write(t, "a.txt.gz", "not compressed"), good, []string{"a.txt.gz: gzip: invalid header"}},
		{"", good, []string{"no training text: want --train_file"}},
	} {
		argv := []string{"--output_dir", t.TempDir(), "--block_size", "32", "--vocab_size", "257"}
		if c.train != "" {
			argv = append(argv, "--train_file", c.train)
		}
		if c.validation != "" {
			argv = append(argv, "--validation_file", c.validation)
		}
		requireOneError(t, clm(t, argv...), 1, c.want...)
	}
}

func TestBadModel(t *testing.T) {
	hubtest.Environment(t, "") // a name that is no folder may be one of the Hub
	text, file, empty := write(t, "text.txt", "Some text.\n"), write(t, "file", "x"), t.TempDir()
	saved := t.TempDir()
	succeed(t, tiny(t, saved, "--max_steps", "2", "--max_new_tokens", "0")...)
	without := func(name string) string {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(saved)))
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
		return dir
	}
	cut := without("model.safetensors")
	weights, err := os.ReadFile(filepath.Join(saved, "model.safetensors"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(cut, "model.safetensors"), weights[:len(weights)-7], 0o666))
	for _, c := range []struct {
		argv []string
		want []string
	}{
		{nil, []string{"want --model_name_or_path"}},
		{[]string{"--model_name_or_path", empty}, []string{empty + " is not a saved model", "config.json"}},
		{[]string{"--model_name_or_path", file}, []string{file + " is not a saved model"}},
		{[]string{"--model_name_or_path", "absent"}, []string{"there is no folder absent here", "HF_HUB_OFFLINE"}},
		{[]string{"--model_name_or_path", without("model.safetensors")}, []string{"model.safetensors"}},
		{[]string{"--model_name_or_path", without("tokenizer.json")}, []string{"tokenizer.json"}},
		{[]string{"--model_name_or_path", cut}, []string{"model.safetensors"}},
		{[]string{"--model_name_or_path", saved, "--block_size", "64"},
			[]string{"block_size 64 is more than the model's 32 positions"}},
	} {
		argv := append([]string{"--do_eval", "--validation_file", text, "--output_dir", t.TempDir()}, c.argv...)
		requireOneError(t, clm(t, argv...), 1, c.want...)
	}
}

// TestUnwritableOutput fails before anything is trained.
func TestUnwritableOutput(t *testing.T) {
	out := filepath.Join(write(t, "file", "x"), "out")
	r := clm(t, tiny(t, out)...)
	requireOneError(t, r, 1, "output_dir "+out, "want a folder that can be written to")
	require.NotContains(t, r.stdout, "model  ")
	r = clm(t, "--do_eval", "--model_name_or_path", "absent", "--output_dir", out)
	requireOneError(t, r, 1, "output_dir "+out)
}

// damages are what disks, copies and people do to a file.
var damages = map[string]func([]byte) []byte{
	"cut":     func(b []byte) []byte { return b[:len(b)/2] },
	"emptied": func([]byte) []byte { return nil },
	"flipped": func(b []byte) []byte { b[len(b)*2/3] ^= 4; return b },
	"longer":  func(b []byte) []byte { return append(b, 0) },
}

func damage(t testing.TB, file string, do func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, do(b), 0o666))
}

// TestDamagedCheckpoint requires a named checkpoint refused by the name of its damaged file, and
// "last" to take the newest whole one and to say so.
func TestDamagedCheckpoint(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	flags := []string{"--save_steps", "8", "--save_total_limit", "none", "--max_new_tokens", "0"}
	succeed(t, tiny(t, whole, flags...)...)
	files := []string{"model.safetensors", "optimizer.safetensors", "trainer_state.json", "sampler.json"}
	if testing.Short() {
		files = files[:2]
	}
	for _, file := range files {
		for how, do := range damages {
			t.Run(file+" "+how, func(t *testing.T) {
				out := t.TempDir()
				require.NoError(t, os.CopyFS(out, os.DirFS(whole)))
				require.NoError(t, os.RemoveAll(filepath.Join(out, "checkpoint-20")))
				damage(t, filepath.Join(out, "checkpoint-16", file), do)
				r := clm(t,
					tiny(t, out, append(flags, "--resume_from_checkpoint", filepath.Join(out, "checkpoint-16"))...)...)
				requireOneError(t, r, 1, "resume_from_checkpoint", filepath.Join("checkpoint-16", file))
			})
		}
	}
	for name, do := range map[string]func(dir string) error{
		"without its manifest": func(dir string) error { return os.Remove(filepath.Join(dir, "manifest.json")) },
		"without a file":       func(dir string) error { return os.Remove(filepath.Join(dir, "rng_state.json")) },
		"gone":                 os.RemoveAll,
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "checkpoint-16")
			require.NoError(t, os.CopyFS(out, os.DirFS(filepath.Join(whole, "checkpoint-16"))))
			require.NoError(t, do(out))
			requireOneError(t, clm(t, tiny(t, t.TempDir(), append(flags, "--resume_from_checkpoint", out)...)...), 1,
				"resume_from_checkpoint", "checkpoint-16")
		})
	}

	out := filepath.Join(dir, "last")
	require.NoError(t, os.CopyFS(out, os.DirFS(whole)))
	damage(t, filepath.Join(out, "checkpoint-20", "model.safetensors"), damages["flipped"])
	r := succeed(t, tiny(t, out, append(flags, "--resume_from_checkpoint", "last")...)...)
	require.Contains(t, r.stderr, "falling back to the newest undamaged checkpoint")
	require.Contains(t, r.stderr, filepath.Join("checkpoint-20", "model.safetensors"))
	requireSameEnd(t, whole, out, 20)

	for _, c := range []string{"checkpoint-8", "checkpoint-16", "checkpoint-20"} {
		damage(t, filepath.Join(out, c, "model.safetensors"), damages["cut"])
	}
	requireOneError(t, clm(t, tiny(t, out, append(flags, "--resume_from_checkpoint", "last")...)...), 1, "checkpoint-8",
		"checkpoint-16", "checkpoint-20")
	requireOneError(t, clm(t, tiny(t, t.TempDir(), "--resume_from_checkpoint", "last")...), 1, "no checkpoint")
}

// TestCheckpointOfAnotherRun refuses a checkpoint that does not fit the data or the model.
func TestCheckpointOfAnotherRun(t *testing.T) {
	whole := t.TempDir()
	heldOut := write(t, "held_out.txt", strings.Repeat("Text that no run is trained on. ", 20))
	succeed(t, tiny(t, whole, "--validation_file", heldOut, "--max_steps", "2", "--max_new_tokens", "0")...)
	resume := func(more ...string) result {
		return clm(t, tiny(t, t.TempDir(), append(more, "--validation_file", heldOut, "--max_steps", "4",
			"--resume_from_checkpoint", filepath.Join(whole, "checkpoint-2"))...)...)
	}
	requireOneError(t, resume("--n_embd", "64"), 1, "transformer.wte.weight", "checkpoint-2")
	requireOneError(t, resume("--block_size", "16"), 1, "checkpoint-2")
	requireOneError(t, resume("--train_file",
		write(t, "more.txt", "More text than before, which makes one more block at least of this corpus.")), 1,
		"the training set or its order has changed", "checkpoint-2")
}

// TestNonfiniteLoss drives the weights to where the loss is no number.
func TestNonfiniteLoss(t *testing.T) {
	hot := []string{"--learning_rate", "1e30", "--warmup_steps", "0", "--max_new_tokens", "0", "--logging_steps", "1"}
	for policy, want := range map[string]struct {
		code  int
		steps int
	}{"raise": {1, 0}, "stop": {1, 2}, "skip": {0, 20}} {
		t.Run(policy, func(t *testing.T) {
			out := t.TempDir()
			r := clm(t, tiny(t, out, append(hot, "--nonfinite_loss", policy)...)...)
			if want.code != 0 {
				requireOneError(t, r, want.code, "step 2: loss NaN", "not finite; the weights are as before the step")
				require.NoFileExists(t, filepath.Join(out, "model.safetensors"))
				if policy == "stop" {
					require.Contains(t, r.stderr, "last checkpoint: "+filepath.Join(out, "checkpoint-2"))
					require.FileExists(t, filepath.Join(out, "checkpoint-2", "model.safetensors"))
				}
				return
			}
			require.Equal(t, 0, r.code, "%s", r.stderr)
			require.Contains(t, r.stderr, "loss or gradient is not finite: the step is skipped")
			require.Contains(t, r.stderr, "policy "+policy)
			var train callbacks.Record
			readJSON(t, &train, out, "train_results.json")
			skipped, _ := train.Number("nonfinite_steps")
			require.EqualValues(t, want.steps-1, skipped)
			loss, _ := train.Number("train_loss")
			require.InDelta(t, 5.7, loss, 1, "of the one step that had a loss")
			var state struct {
				GlobalStep int `json:"global_step"`
			}
			readJSON(t, &state, out, "trainer_state.json")
			require.Equal(t, want.steps, state.GlobalStep)
		})
	}
}
