// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data/images"
	"github.com/lockstep-ml/lockstep/internal/imagestest"
	"github.com/lockstep-ml/lockstep/internal/recordtest"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// vision runs the program and returns what it prints.
func vision(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(context.Background(), argv, &out, &out)
	return out.String(), err
}

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
	require.Contains(t, printed, "model      resnet of channels [8 16], 1 layer each")
	require.Contains(t, printed, "4 classes")
	result := func(printed string) recordtest.Record {
		return recordtest.Last(t, printed, "eval_loss", "eval_accuracy")
	}
	require.Greater(t, result(printed).Number(t, "eval_accuracy"), 0.9)
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
	require.Equal(t, result(printed), result(again))

	two, err := vision(t, flags("two", "--num_replicas", "2")...)
	require.NoError(t, err)
	require.Equal(t, result(printed), result(two))
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
	require.ErrorContains(t, err, "want a data set: apt install dataset-fashion-mnist puts one into "+
		"/usr/share/datasets/fashion-mnist")
	_, err = vision(t, "--do_eval")
	require.ErrorContains(t, err, "want --model_name_or_path FOLDER")
	sets := filepath.Join(dir, "data")
	require.NoError(t, imagestest.WriteIDX(sets, 8, 8))
	_, err = vision(t, "--data_dir", sets, "--label_names", "a,b,c", "--output_dir", dir)
	require.ErrorContains(t, err, "label_names has 3 names, and "+sets+" has images of 4 classes")
	_, err = vision(t, "--train_dir", filepath.Join(dir, "none"), "--output_dir", dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for want, argv := range map[string][]string{
		"validation_dir":  {"--validation_dir", sets},
		"train_dir":       {"--train_dir", sets, "--data_dir", sets},
		"train_val_split": {"--data_dir", sets, "--train_val_split", "1"},
		"crop_padding":    {"--data_dir", sets, "--crop_padding", "-1"},
	} {
		_, err := vision(t, append(argv, "--output_dir", dir)...)
		var usage *args.Error
		require.ErrorAs(t, err, &usage)
		require.ErrorContains(t, err, want)
	}
	_, err = vision(t, "--width", "0", "--max_images", "-1")
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "width")
	require.ErrorContains(t, err, "max_images")
}

// Folders of colored images train with random crops and flips to the same bits on one rank and on two, and after a
// resume in the middle of an epoch; without images to evaluate on a share is held out.
func TestFoldersOfColoredImages(t *testing.T) {
	dir := t.TempDir()
	sets := filepath.Join(dir, "pets")
	require.NoError(t, imagestest.WriteFolders(sets, 40))
	flags := func(out string, more ...string) []string {
		return append([]string{"--train_dir", sets, "--output_dir", filepath.Join(dir, out), "--width", "8",
			"--stages", "2", "--image_size", "10", "--crop_padding", "2", "--horizontal_flip",
			"--learning_rate", "1e-2", "--max_steps", "8", "--per_device_train_batch_size", "4",
			"--global_train_batch_size", "8", "--eval_strategy", "no", "--save_strategy", "steps",
			"--save_steps", "3", "--save_total_limit", "5"}, more...)
	}
	weights := func(out string) string {
		raw, err := os.ReadFile(filepath.Join(dir, out, "model.safetensors"))
		require.NoError(t, err)
		return string(raw)
	}
	printed, err := vision(t, flags("one")...)
	require.NoError(t, err)
	require.Contains(t, printed, "34 images to learn from, 6 images held out", "15 % of 40")
	require.Regexp(t, `(?m)^round .* \d+$`, printed, "the class of a folder")
	_, err = vision(t, flags("two", "--num_replicas", "2", "--dataloader_num_workers", "2")...)
	require.NoError(t, err)
	require.True(t, weights("one") == weights("two"), "two ranks end with the bits of one")
	_, err = vision(t, flags("resumed", "--resume_from_checkpoint", filepath.Join(dir, "one", "checkpoint-3"))...)
	require.NoError(t, err)
	require.True(t, weights("one") == weights("resumed"), "a resumed run ends with the bits of a whole one")
	_, err = vision(t, append(flags("plain"), "--crop_padding", "0", "--horizontal_flip=false")...)
	require.NoError(t, err)
	require.False(t, weights("one") == weights("plain"), "the images are changed")

	printed, err = vision(t, "--do_eval", "--model_name_or_path", filepath.Join(dir, "one"), "--data_dir", sets,
		"--max_images", "5", "--output_dir", filepath.Join(dir, "eval"))
	require.NoError(t, err)
	require.Contains(t, printed, "5 images held out")
	saved, err := models.OpenPretrained[*resnet.Model](tensor.CPU(), filepath.Join(dir, "one"), "a resnet")
	require.NoError(t, err)
	require.Equal(t, 3, saved.Model.Cfg.NumChannels)
	require.Equal(t, []string{"round", "square"}, saved.Model.Labels())
	n, size, err := loadPreprocessor(saved)
	require.NoError(t, err)
	require.Len(t, n.Mean, 3)
	require.Equal(t, imageSize{10, 10}, size)

	grey := filepath.Join(dir, "grey")
	require.NoError(t, imagestest.WriteIDX(grey, 8, 8))
	_, err = vision(t, "--model_name_or_path", filepath.Join(dir, "one"), "--data_dir", grey, "--output_dir", dir)
	require.ErrorContains(t, err, "reads images of 3 channels, and those of "+grey+" have 1")
	require.NoError(t, os.Rename(filepath.Join(sets, "round"), filepath.Join(sets, "star")))
	_, err = vision(t, "--model_name_or_path", filepath.Join(dir, "one"), "--data_dir", sets, "--output_dir", dir)
	require.ErrorContains(t, err, "has square as class 1, and in "+sets+" it is class 0")
	_, err = vision(t, "--train_dir", sets, "--output_dir", filepath.Join(dir, "sizes"))
	require.ErrorContains(t, err, "pixels: want --image_size")
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
	for _, flag := range []string{"--data_dir", "--train_dir", "--model_name_or_path"} {
		s = parsed(flag, "x")
		require.Equal(t, args.Default("").LearningRate, s.args.LearningRate, flag)
		require.Empty(t, s.data.LabelNames, flag)
		require.NotEmpty(t, s.data.where())
	}
}

func TestPictures(t *testing.T) {
	var b strings.Builder
	x := images.Image{Height: 3, Width: 2, Pixels: []uint8{0, 255, 0, 255, 100, 0}}
	writePictures(&b, []images.Image{x, x}, []string{"a", "bag"})
	require.Equal(t, " @    @\n-    -\na    bag\n", b.String())
	require.Equal(t, []int{76, 149}, []int{brightness(images.Image{Channels: 3, Height: 1, Width: 1,
		Pixels: []uint8{255, 0, 0}}, 0), brightness(images.Image{Channels: 3, Height: 1, Width: 1,
		Pixels: []uint8{0, 255, 0}}, 0)})
}
