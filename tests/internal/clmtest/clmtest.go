// SPDX-License-Identifier: Apache-2.0

// Package clmtest makes what tests that run examples/clm as its users do start from: the
// built programs and a text to train on. It runs nothing but the go command and judges
// nothing.
package clmtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Recipe are flags with which a tiny model of clm's learns in a few steps, with evaluations during training.
func Recipe() []string {
	return []string{"--learning_rate", "3e-3", "--weight_decay", "0.1", "--adam_beta2", "0.98", "--lr_scheduler_type",
		"cosine",
		"--eval_strategy", "steps", "--save_total_limit", "2", "--dataloader_num_workers", "1"}
}

// Tiny are the flags of a run of milliseconds a step: dropout, tied weights, clipping that is always active, and 8
// samples a step, which no epoch's number of samples is a multiple of. corpus and heldOut are folders of [WriteCorpus]
// with 8 files of 1000 bytes and 2 of 500. Later flags beat earlier ones.
func Tiny(corpus, heldOut, out string, more ...string) []string {
	return slices.Concat(Recipe(), []string{
		"--train_file", corpus, "--validation_file", heldOut, "--output_dir", out, "--n_layer", "1", "--n_embd", "32",
		"--n_head", "2", "--vocab_size", "300",
		"--block_size", "32", "--dropout", "0.1", "--max_grad_norm", "0.5", "--per_device_train_batch_size", "2",
		"--global_train_batch_size", "8",
		"--max_steps", "24", "--warmup_steps", "2", "--logging_steps", "1", "--eval_steps", "10", "--save_steps", "8",
		"--save_total_limit", "none",
		"--max_new_tokens", "0", "--report_to", "jsonl",
	}, more)
}

// Llama is the config.json of a small block with rotary positions, grouped queries and a gated MLP, whose heads and
// features divide into up to four parts.
const Llama = `{"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
	"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4, "max_position_embeddings": 32,
	"attention_dropout": 0.1, "tie_word_embeddings": true}`

// Follow changes flags such as those of Tiny to those of a new model that follows a config.json.
func Follow(config string, flags []string) []string {
	own := map[string]bool{"--n_layer": true, "--n_embd": true, "--n_head": true, "--dropout": true}
	follow := []string{"--config_name", config}
	for i := 0; i < len(flags); i++ {
		if own[flags[i]] {
			i++ // its value
		} else {
			follow = append(follow, flags[i])
		}
	}
	return follow
}

// Build builds the main package in the folder pkg of the repository, such as
// "examples/clm", without cgo, into the folder dir, and returns the program's path. root is
// the repository's folder as seen from the test. The error holds what the compiler said.
func Build(root, pkg, dir string, flags ...string) (string, error) {
	sources, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	if err != nil {
		return "", err
	}
	for _, s := range sources { // the go command sees what a test reads, not what a build in a test does
		if _, err := os.ReadFile(s); err != nil {
			return "", err
		}
	}
	name := filepath.Join(dir, filepath.Base(pkg))
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	// without what a debugger reads, which takes a third of a link's time
	argv := slices.Concat([]string{"build", "-ldflags=-s -w", "-o", name}, flags, []string{"./" + pkg})
	cmd := exec.Command("go", argv...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return name, nil
}

// WriteCorpus makes the folder dir with so many text files of about size bytes each, the
// same at every call.
func WriteCorpus(dir string, files, size int) error {
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("text%02d.txt", i)), []byte(English(r, size)),
			0o666); err != nil {
			return err
		}
	}
	return nil
}

// English makes n bytes and a little of sentences without sense.
func English(r *rand.Rand, n int) string {
	nouns := strings.Fields("river stone morning garden letter winter bridge window teacher city mountain story road " +
		"summer house child sea market horse lamp")
	verbs := strings.Fields("finds carries remembers crosses watches builds follows hears opens leaves paints " +
		"teaches answers holds")
	adjectives := strings.Fields("old quiet bright narrow green heavy distant gentle empty strange warm broken")
	pick := func(words []string) string { return words[r.IntN(len(words))] }
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "The %s %s %s a %s", pick(adjectives), pick(nouns), pick(verbs), pick(nouns))
		if r.IntN(2) == 0 {
			fmt.Fprintf(&b, ", and the %s %s it", pick(nouns), pick(verbs))
		}
		b.WriteString([]string{". ", "! ", ".\n", ".\n\n"}[r.IntN(4)])
	}
	return b.String()
}
