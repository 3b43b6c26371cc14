// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
)

// What is wrong with a saved model is found before the text is read: there is none here.
func TestSavedModelIsLookedAtFirst(t *testing.T) {
	dir := t.TempDir()
	clm := func(argv ...string) (string, error) {
		var out bytes.Buffer
		err := run(t.Context(), append(argv, "--output_dir", filepath.Join(dir, "out"), "--report_to", "none"), &out,
			&out)
		return out.String(), err
	}
	text := filepath.Join(dir, "text.csv")
	require.NoError(t, os.WriteFile(text, []byte("id,content,score\nx1,\"One text, with a comma.\",1\nx2,Another "+
		"one.,2\n"), 0o600))
	small := filepath.Join(dir, "small")
	printed, err := clm("--train_file", text, "--n_layer", "1", "--n_embd", "8", "--n_head", "1", "--vocab_size", "257",
		"--block_size", "8", "--max_steps", "1", "--max_new_tokens", "0", "--overwrite_output_dir")
	require.NoError(t, err)
	require.Contains(t, printed, "2 documents, 35 bytes, of column content", "not the whole file, nor id")
	require.NoError(t, os.Rename(filepath.Join(dir, "out"), small))

	grown, err := tokenizers.Train(t.Context(), func(yield func(string, error) bool) { yield("aa aa", nil) },
		tokenizers.TrainOptions{VocabSize: 258, SpecialTokens: []string{endOfText, "<extra>"}})
	require.NoError(t, err)
	larger := filepath.Join(dir, "larger")
	require.NoError(t, os.CopyFS(larger, os.DirFS(small)))
	require.NoError(t, grown.Save(filepath.Join(larger, models.TokenizerFile)))
	for model, want := range map[string]string{
		"gpt2": "gpt2 is not a saved model: there is no such folder. If it is a model of HuggingFace's Hub",
		larger: "has 258 tokens, more than the model's 257: 257 is ",
		filepath.Join("..", "classify", "testdata", "trainer"): "is a GPT2ForSequenceClassification: want a " +
			"language model such " +
			"as GPT2LMHeadModel",
	} {
		_, err := clm("--model_name_or_path", model, "--train_file", filepath.Join(dir, "absent.txt"))
		require.ErrorContains(t, err, want)
	}
	_, err = clm("--model_name_or_path", small, "--train_file", filepath.Join(dir, "absent.txt"))
	require.ErrorContains(t, err, "absent.txt")
}
