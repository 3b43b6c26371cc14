// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/program"
)

// ported runs a script in its own folder and returns what it prints.
func ported(t *testing.T, script, out string, argv ...string) string {
	t.Helper()
	var printed, log bytes.Buffer
	p := &program.Process{Name: "ported", Args: append([]string{script, "--output_dir", out}, argv...),
		Stdout: &printed, Stderr: &log}
	require.NoError(t, run(t.Context(), p), log.String())
	return printed.String()
}

// figure is the last number behind a name.
func figure(t *testing.T, printed, name string) float64 {
	t.Helper()
	all := regexp.MustCompile(regexp.QuoteMeta(name)+`[: ]([-+.e\d]+)`).FindAllStringSubmatch(printed, -1)
	require.NotEmpty(t, all, printed)
	x, err := strconv.ParseFloat(all[len(all)-1][1], 64)
	require.NoError(t, err)
	return x
}

var things = []string{"cat", "dog", "horse", "bird", "fish", "cow"}

// sentencePairs writes n pairs of sentences; those of label 1 are about the same animal.
func sentencePairs(t *testing.T, n int) string {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	text := "sentence1,sentence2,label\n"
	for i := range n {
		a, b := r.IntN(2), r.IntN(2)
		if i%2 == 0 {
			b = a
		}
		text += fmt.Sprintf("a %s,the %s,%d\n", things[a], things[b], map[bool]int{true: 1}[a == b])
	}
	path := filepath.Join(t.TempDir(), "pairs.csv")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestNLP(t *testing.T) {
	for _, script := range []string{"nlp_example", "complete_nlp_example"} {
		t.Run(script, func(t *testing.T) {
			file, out := sentencePairs(t, 80), t.TempDir()
			printed := ported(t, script, out, "--train_file", file, "--num_train_epochs", "10")
			require.Greater(t, figure(t, printed, "accuracy"), 0.9, printed)
			if script == "nlp_example" {
				return
			}
			// It trains on ranks, accumulates, and resumes with the same bits.
			args := []string{"--train_file", file, "--num_replicas", "2", "--gradient_accumulation_steps", "2",
				"--per_device_train_batch_size", "4", "--num_train_epochs", "3"}
			whole, broken := t.TempDir(), t.TempDir()
			ported(t, script, whole, args...)
			ported(t, script, broken, args...)
			last, err := filepath.Glob(filepath.Join(broken, "checkpoint-*"))
			require.NoError(t, err)
			require.Len(t, last, 3)
			require.NoError(t, os.Remove(filepath.Join(broken, "model.safetensors")))
			ported(t, script, broken, append(args, "--resume_from_checkpoint", filepath.Join(broken, "checkpoint-8"),
				"--overwrite_output_dir")...)
			want, err := os.ReadFile(filepath.Join(whole, "model.safetensors"))
			require.NoError(t, err)
			got, err := os.ReadFile(filepath.Join(broken, "model.safetensors"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		})
	}
}

func TestCV(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	for split, n := range map[string]int{"train": 16, "test": 6} {
		for class, tone := range map[string]uint8{"dark": 60, "light": 180} {
			folder := filepath.Join(dir, split, class)
			require.NoError(t, os.MkdirAll(folder, 0o700))
			for i := range n {
				picture := image.NewRGBA(image.Rect(0, 0, 20, 24))
				for x := range 20 {
					for y := range 24 {
						picture.Set(x, y, color.RGBA{tone + uint8(r.IntN(60)), tone, uint8(r.IntN(255)), 255})
					}
				}
				var file bytes.Buffer
				require.NoError(t, png.Encode(&file, picture))
				name := filepath.Join(folder, fmt.Sprintf("%d.png", i))
				require.NoError(t, os.WriteFile(name, file.Bytes(), 0o600))
			}
		}
	}
	for _, script := range []string{"cv_example", "complete_cv_example"} {
		printed := ported(t, script, t.TempDir(), "--data_dir", dir, "--num_train_epochs", "8")
		require.Greater(t, figure(t, printed, "accuracy"), 0.9, printed)
	}
}

func TestCrossValidation(t *testing.T) {
	printed := ported(t, "cross_validation", t.TempDir(), "--train_file", sentencePairs(t, 61),
		"--num_train_epochs", "10")
	require.Contains(t, printed, "3 folds, 61 rows")
	require.Greater(t, figure(t, printed, "accuracy"), 0.8, printed)
}

func TestMemory(t *testing.T) {
	file := sentencePairs(t, 96)
	for _, script := range []string{"memory", "automatic_gradient_accumulation"} {
		require.Contains(t, ported(t, script, t.TempDir(), "--train_file", file), "3 steps of 1 × 32 samples")
	}
	printed := ported(t, "memory", t.TempDir(), "--train_file", file, "--memory_limit", "700000")
	println(printed)
	require.Regexp(t, `(?s)32 samples do not fit: .*3 steps of 2 × 16 samples`, printed)
}

// Three ranks with batches of three say of 25 rows what one rank says.
func TestMultiProcessMetrics(t *testing.T) {
	file := sentencePairs(t, 100)
	one := ported(t, "multi_process_metrics", t.TempDir(), "--train_file", file)
	require.Contains(t, one, "25 of 25 rows")
	three := ported(t, "multi_process_metrics", t.TempDir(), "--train_file", file, "--num_replicas", "3")
	require.Equal(t, one, three)
}

func TestScheduleFree(t *testing.T) {
	printed := ported(t, "schedule_free", t.TempDir(), "--train_file", sentencePairs(t, 80), "--num_train_epochs", "10")
	require.Greater(t, figure(t, printed, "accuracy"), 0.9, printed)
}

func TestCLM(t *testing.T) {
	var files []string
	for i, n := range []int{120, 20} {
		text := ""
		for k := range n {
			text += fmt.Sprintf("the %s sees the %s\n\n", things[k%6], things[(k+1)%6])
		}
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprintf("%d.txt", i)))
		require.NoError(t, os.WriteFile(files[i], []byte(text), 0o600))
	}
	argv := []string{"--train_file", files[0], "--validation_file", files[1], "--block_size", "16"}
	printed := ported(t, "run_clm_no_trainer", t.TempDir(), append(argv, "--num_train_epochs", "8")...)
	require.Less(t, figure(t, printed, "perplexity"), 10.0, printed)

	// Two micro-batches of 4 samples are one of 8: the loss is a mean over tokens.
	const script = "gradient_accumulation_for_autoregressive_models"
	argv = append(argv, "--num_train_epochs", "1", "--gradient_accumulation_steps")
	whole := ported(t, script, t.TempDir(), append(argv, "1", "--per_device_train_batch_size", "8")...)
	parts := ported(t, script, t.TempDir(), append(argv, "2", "--per_device_train_batch_size", "4")...)
	require.InEpsilon(t, figure(t, whole, "eval_loss"), figure(t, parts, "eval_loss"), 1e-5)
}

func TestSeq2Seq(t *testing.T) {
	text := "text,summary\n"
	for range 8 {
		for _, a := range things {
			text += "there is a " + a + " here," + a + " is here now ok\n"
		}
	}
	file := filepath.Join(t.TempDir(), "texts.csv")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	for script, name := range map[string]string{"run_summarization": "eval_rougeL", "run_translation": "eval_bleu"} {
		printed := ported(t, script, t.TempDir(), "--train_file", file, "--validation_file", file,
			"--num_train_epochs", "8", "--generation_max_length", "24")
		require.Greater(t, figure(t, printed, name), 80.0, printed)
	}
}

// All ranks together answer what one does.
func TestInference(t *testing.T) {
	file := sentencePairs(t, 11)
	one := ported(t, "distributed_inference", t.TempDir(), "--train_file", file)
	three := ported(t, "distributed_inference", t.TempDir(), "--train_file", file, "--num_replicas", "3")
	require.Equal(t, strings.TrimPrefix(one, "1 ranks"), strings.TrimPrefix(three, "3 ranks"))
}

// README.md names every script, and tests those that are here.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(scripts)) {
		require.Contains(t, string(page), "`"+name+".py`")
	}
	rows := regexp.MustCompile("(?m)^\\| `[a-z_0-9]+\\.py`").FindAllString(string(page), -1)
	require.GreaterOrEqual(t, len(rows), 20)
}
