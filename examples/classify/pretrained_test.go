// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// trainerFolder was written by HuggingFace's Trainer: see testdata/make_trainer.py.
var trainerFolder = filepath.Join("testdata", "trainer")

// A classifier that HuggingFace's Trainer saved, with truncation and padding in its tokenizer.json, gives its logits
// here, is evaluated on labels that are numbers, and learns on; its tokenizer stays as it was.
func TestFolderOfHuggingFacesTrainer(t *testing.T) {
	var golden struct {
		Texts  []string
		IDs    [][]int32
		Logits [][]float32
	}
	raw, err := os.ReadFile(filepath.Join(trainerFolder, "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	saved, err := open(trainerFolder)
	require.NoError(t, err)
	m := saved.Model.(*gpt2.Classifier)
	config, err := readTokenizerConfig(saved)
	require.NoError(t, err)
	r := newReader(m, saved.Tokenizer, config)
	samples := make([]data.LabelledTokens, len(golden.Texts))
	for i, text := range golden.Texts {
		ids, err := saved.Tokenizer.Encode(text)
		require.NoError(t, err)
		samples[i].InputIDs = r.fit(ids, m.Cfg.NPositions)
		require.Equal(t, golden.IDs[i], samples[i].InputIDs, text)
	}
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nn.Walk(m), false)
	b, err := data.WithPadding(r.pad)(c.Ctx, samples)
	require.NoError(t, err)
	delete(b.Tensors, data.Labels)
	logits := tensor.ToSlice[float32](c.Ctx, m.Forward(c, b).Logits)
	for i, want := range golden.Logits {
		require.InDeltaSlice(t, want, logits[2*i:2*i+2], 1e-5, golden.Texts[i])
	}

	dir := t.TempDir()
	table := filepath.Join(dir, "moods.csv")
	require.NoError(t, os.WriteFile(table, []byte(",idx,sentence,label\n0,7,\"The garden was lovely, they said.\",1\n"+
		"1,8,\"The room was awful, they said.\",0\n2,9,The film was"+strings.Repeat(" really", 40)+" great,1.0\n"),
		0o600))
	printed, err := classify("--do_eval", "--model_name_or_path", trainerFolder, "--validation_file", table,
		"--output_dir",
		filepath.Join(dir, "eval"))
	require.NoError(t, err)
	require.Contains(t, printed, "  eval_accuracy 1  ")
	require.Contains(t, printed, "baseline   accuracy 0.6667, by taking the most frequent class\n")
	require.Contains(t, printed, "%, right): The garden was lovely")
	require.NotContains(t, printed, "wrong, it is")
	require.Contains(t, printed, "text in column sentence, classes in label, 3 texts")
	require.Contains(t, printed, "cut        33.3 % of 3 texts to 24 tokens: see --max_seq_length")
	_, err = classify("--model_name_or_path", trainerFolder, "--train_file", table, "--validation_file", table,
		"--output_dir", filepath.Join(dir, "more"), "--num_train_epochs", "1")
	require.NoError(t, err)
	for _, name := range []string{models.TokenizerFile, tokenizerConfigFile} {
		before, err := os.ReadFile(filepath.Join(trainerFolder, name))
		require.NoError(t, err)
		after, err := os.ReadFile(filepath.Join(dir, "more", name))
		require.NoError(t, err)
		require.Equal(t, string(before), string(after))
	}
}

// Texts are cut on the side that tokenizer_config.json says, and special tokens are kept.
func TestFit(t *testing.T) {
	saved, err := open(trainerFolder)
	require.NoError(t, err)
	m := saved.Model.(*gpt2.Classifier)
	r := newReader(m, saved.Tokenizer, tokenizerConfig{TruncationSide: "left"})
	require.Equal(t, []int32{4, 5}, r.fit([]int32{3, 4, 5}, 2))
	require.Equal(t, []int32{3, 4}, newReader(m, saved.Tokenizer, tokenizerConfig{}).fit([]int32{3, 4, 5}, 2))
	require.Equal(t, []int32{1}, r.fit(nil, 2), "padding")
	require.NoError(t, saved.Tokenizer.BeginWith(endOfText))
	require.Equal(t, []int32{0, 5}, r.fit([]int32{3, 4, 5}, 2))
	require.Equal(t, []int32{0}, r.fit(nil, 2))
}

// What a label is: the name of a class, or its number if no name is one.
func TestLabelling(t *testing.T) {
	for _, c := range []struct {
		names string
		label string
		want  int64
	}{
		{"negative positive", "positive", 1}, {"LABEL_0 LABEL_1", "1", 1}, {"LABEL_0 LABEL_1", "0.0", 0},
		{"LABEL_0 LABEL_1", "2", -1}, {"LABEL_0 LABEL_1", "-1", -1}, {"LABEL_0 LABEL_1", "0.5", -1},
		{"1 2 3", "1", 0}, {"1 2 3", "0", -1}, {"a b", "c", -1},
	} {
		got, err := labelling(strings.Fields(c.names))(c.label)
		if c.want < 0 {
			require.ErrorContains(t, err, "is none of the model's: want one of "+strings.Split(c.names, " ")[0],
				c.label)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.label)
	}
}

// Columns are chosen as data sets name them, or it is said why not.
func TestColumns(t *testing.T) {
	dir := t.TempDir()
	moods := writeMoods(t, dir, "csv", 40)
	train, eval, err := readTexts(nil, &DataArguments{TrainFile: moods, LabelColumn: "sentiment",
		ValidationSplitPercentage: 10},
		1, true)
	require.NoError(t, err)
	require.Equal(t, "sentence", train.column, "id is a number, and the first column")
	require.Len(t, eval.texts, 4)
	for content, want := range map[string]string{
		"index,sentence1,sentence2,label\n0,a,b,1\n1,c,d,0\n": "the texts are pairs, of sentence1 and sentence2",
		"sentence,label\na,2.5\nb,1.0\n":                      "line 2: label is 2.5: numbers with fractions",
		"idx,label\n1,a\n2,b\n":                               "none of the columns idx, label holds texts",
	} {
		path := filepath.Join(dir, "table.csv")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := classify("--train_file", path, "--output_dir", filepath.Join(dir, "out"))
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
	}
	hubtest.Environment(t, "")
	_, err = classify("--train_file", moods, "--model_name_or_path", "gpt2", "--output_dir", filepath.Join(dir, "out"),
		"--cache_dir", dir)
	require.ErrorContains(t, err, "there is no folder gpt2 here, and: hub: model gpt2 is not in the cache "+dir)
}
