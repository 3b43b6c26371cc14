package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/images/imagestest"
	"github.com/lockstep-ml/lockstep/trainer"
)

// vision runs the program and returns what it prints.
func vision(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	err := run(context.Background(), argv, &out, &errs)
	return out.String(), err
}

var result = regexp.MustCompile(`eval: accuracy ([\d.]+), loss`)

// A small model learns to tell bright quarters apart; the saved one evaluates the same, and
// two ranks train it the same.
func TestVision(t *testing.T) {
	dir := t.TempDir()
	sets := filepath.Join(dir, "data")
	require.NoError(t, imagestest.WriteIDX(sets, 256, 64))
	flags := func(out string, more ...string) []string {
		return append([]string{"--data_dir", sets, "--output_dir", filepath.Join(dir, out), "--width", "8", "--stages", "2", "--num_train_epochs", "6",
			"--per_device_train_batch_size", "8", "--global_train_batch_size", "16", "--warmup_steps", "5", "--learning_rate", "1e-2"}, more...)
	}
	printed, err := vision(t, flags("one")...)
	require.NoError(t, err)
	require.Contains(t, printed, "model: resnet, channels [8 16], 1 layers each")
	require.Contains(t, printed, "4 classes")
	m := result.FindStringSubmatch(printed)
	require.NotNil(t, m, printed)
	accuracy, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	require.Greater(t, accuracy, 0.9)
	require.FileExists(t, filepath.Join(dir, "one", "preprocessor_config.json"))
	require.FileExists(t, filepath.Join(dir, "one", "log.jsonl"))

	again, err := vision(t, "--do_eval", "--model_name_or_path", filepath.Join(dir, "one"), "--data_dir", sets, "--output_dir", filepath.Join(dir, "eval"))
	require.NoError(t, err)
	require.Contains(t, again, m[0])

	two, err := vision(t, flags("two", "--num_replicas", "2")...)
	require.NoError(t, err)
	require.Contains(t, two, m[0])
	for _, dir := range []string{filepath.Join(dir, "one"), filepath.Join(dir, "two")} {
		raw, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		require.NoError(t, err)
		require.Contains(t, string(raw[:binary.LittleEndian.Uint64(raw)]), "running_var")
	}
	a, err := os.ReadFile(filepath.Join(dir, "one", "model.safetensors"))
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(dir, "two", "model.safetensors"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(a, b), "two ranks end with the bits of one")
}

func TestVisionRefuses(t *testing.T) {
	dir := t.TempDir()
	_, err := vision(t, "--data_dir", filepath.Join(dir, "none"), "--output_dir", dir)
	require.ErrorContains(t, err, "want a data set in IDX files: apt install dataset-fashion-mnist puts one into /usr/share/datasets/fashion-mnist")
	_, err = vision(t, "--do_eval")
	require.ErrorContains(t, err, "want --model_name_or_path FOLDER")
	_, err = vision(t, "--width", "0", "--max_images", "-1")
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "width")
	require.ErrorContains(t, err, "max_images")
}

// The counts of several ranks make one accuracy.
func TestAccuracyMerges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var parts [][]byte
	var right, all int64
	for range 3 {
		m := &accuracy{right: r.Int64N(1 << 40), all: 1 << 40}
		right, all = right+m.right, all+m.all
		part, err := m.ExportPart()
		require.NoError(t, err)
		parts = append(parts, part)
	}
	m := (&accuracy{right: 5}).ForRank().(*accuracy)
	require.NoError(t, m.MergeParts(parts))
	require.Equal(t, accuracy{right, all}, *m)
	require.Equal(t, fmt.Sprint(float64(right)/float64(all)), fmt.Sprint(m.Compute(trainer.EvalLoss{})["accuracy"]))
	require.EqualError(t, m.MergeParts([][]byte{parts[0], nil}), "rank 1 sent 0 bytes, want two counts")
}
