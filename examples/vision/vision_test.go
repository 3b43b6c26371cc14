// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/internal/imagestest"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
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
		return append([]string{"--data_dir", sets, "--output_dir", filepath.Join(dir, out), "--width", "8",
			"--stages", "2", "--num_train_epochs", "6",
			"--label_names", "left_top,right_top,left_bottom,right_bottom", "--lr_scheduler_type", "cosine",
			"--per_device_train_batch_size", "8", "--global_train_batch_size", "16", "--warmup_steps", "5",
			"--learning_rate", "1e-2"}, more...)
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
	require.Regexp(t, `(?m)^left_bottom .* \d+$`, printed, "the table of classes")
	require.Regexp(t, `(?m)^(left|right)_(top|bottom) \((right|wrong, it is \w+)\)  `, printed,
		"the captions of pictures")
	m2, err := models.LoadPretrained(tensor.CPU(), filepath.Join(dir, "one"))
	require.NoError(t, err)
	require.Equal(t, []string{"left_top", "right_top", "left_bottom", "right_bottom"}, m2.(*resnet.Model).Labels())
	text, err := os.ReadFile(filepath.Join(dir, "one", "preprocessor_config.json"))
	require.NoError(t, err)
	var p preprocessor
	require.NoError(t, json.Unmarshal(text, &p))
	require.Equal(t, imageSize{imagestest.Size, imagestest.Size}, p.Size)
	require.InDelta(t, 0.4, p.ImageMean[0], 0.05)
	require.FileExists(t, filepath.Join(dir, "one", "log.jsonl"))

	again, err := vision(t, "--do_eval", "--model_name_or_path", filepath.Join(dir, "one"), "--data_dir", sets,
		"--output_dir", filepath.Join(dir, "eval"))
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
	require.ErrorContains(t, err, "want a data set in IDX files: apt install dataset-fashion-mnist puts one into "+
		"/usr/share/datasets/fashion-mnist")
	_, err = vision(t, "--do_eval")
	require.ErrorContains(t, err, "want --model_name_or_path FOLDER")
	sets := filepath.Join(dir, "data")
	require.NoError(t, imagestest.WriteIDX(sets, 8, 8))
	_, err = vision(t, "--data_dir", sets, "--label_names", "a,b,c", "--output_dir", dir)
	require.ErrorContains(t, err, "label_names has 3 names, and "+sets+" has images of 4 classes")
	_, err = vision(t, "--width", "0", "--max_images", "-1")
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "width")
	require.ErrorContains(t, err, "max_images")
}

// The demonstration's settings hold only where no images and no model are given.
func TestDemonstrationSettings(t *testing.T) {
	parsed := func(argv ...string) *settings {
		s := newSettings(false)
		_, err := s.loader(&program.Process{Name: "vision"}).Parse(argv)
		require.NoError(t, err)
		return s
	}
	s := parsed()
	require.Equal(t, []any{3e-3, fashionDir, fashionNames},
		[]any{s.args.LearningRate, s.data.DataDir, s.data.LabelNames})
	for _, flag := range []string{"--data_dir", "--model_name_or_path"} {
		s = parsed(flag, "x")
		require.Equal(t, args.Default("").LearningRate, s.args.LearningRate, flag)
		require.Empty(t, s.data.LabelNames, flag)
		require.NotEmpty(t, s.data.DataDir)
	}
}

func TestPictures(t *testing.T) {
	var b strings.Builder
	x := images.Image{Height: 3, Width: 2, Pixels: []uint8{0, 255, 0, 255, 100, 0}}
	writePictures(&b, []images.Image{x, x}, []string{"a", "bag"})
	require.Equal(t, " @    @\n-    -\na    bag\n", b.String())
}
