// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
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
	hubtest.Environment(t, "")
	for model, want := range map[string]string{
		"gpt2": "there is no folder gpt2 here, and: hub: model gpt2 is not in the cache",
		larger: "has 258 tokens, more than the model's 257: 257 is ",
		filepath.Join("..", "classify", "testdata", "trainer"): "is a GPT2ForSequenceClassification: want a " +
			"language model, such as LlamaForCausalLM",
	} {
		_, err := clm("--model_name_or_path", model, "--train_file", filepath.Join(dir, "absent.txt"))
		require.ErrorContains(t, err, want)
	}
	_, err = clm("--model_name_or_path", small, "--train_file", filepath.Join(dir, "absent.txt"))
	require.ErrorContains(t, err, "absent.txt")
}

// A new model follows a config.json, with the tokens of its tokenizer, and training continues from what it is saved as.
func TestModelFollowsAConfig(t *testing.T) {
	dir := t.TempDir()
	out, text := filepath.Join(dir, "out"), filepath.Join(dir, "text.txt")
	require.NoError(t, os.WriteFile(text, bytes.Repeat([]byte("One text, and another one.\n"), 20), 0o600))
	config := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
		"max_position_embeddings": 16, "tie_word_embeddings": true, "vocab_size": 99999,
		"eos_token_id": [5, 6]}`), 0o600))
	clm := func(argv ...string) (string, error) {
		var printed bytes.Buffer
		err := run(t.Context(), append(argv, "--train_file", text, "--max_steps", "2", "--report_to", "none",
			"--output_dir", out, "--overwrite_output_dir", "--max_new_tokens", "20"), &printed, &printed)
		return printed.String(), err
	}
	printed, err := clm("--config_name", config, "--vocab_size", "260", "--block_size", "16")
	require.NoError(t, err, printed)
	require.Contains(t, printed, "qwen3 as "+config)
	require.Contains(t, printed, "260, of the tokenizer: "+config+" has 99999")
	hostile := filepath.Join(dir, "hostile.json")
	saved, err := models.OpenPretrained[language.Model](tensor.CPU(), out, "")
	require.NoError(t, err)
	require.Equal(t, "Qwen3ForCausalLM", models.Architecture(saved.Model))
	require.Equal(t, 260, saved.Tokenizer.VocabSize())
	eot, _ := saved.Tokenizer.TokenID(endOfText)
	require.Equal(t, []int{int(eot)}, saved.Model.EndTokens())

	first := filepath.Join(dir, "first")
	require.NoError(t, os.Rename(out, first))
	printed, err = clm("--model_name_or_path", first)
	require.NoError(t, err, printed)
	require.Contains(t, printed, "16 tokens", "the model's positions")

	for _, size := range []string{"-1", "0", "1000000000000", `"x"`} {
		require.NoError(t, os.WriteFile(hostile, []byte(`{"model_type": "llama", "vocab_size": `+size+`}`), 0o600))
		_, err = clm("--config_name", hostile, "--vocab_size", "260", "--block_size", "16")
		require.ErrorContains(t, err, "vocab_size = "+strings.Trim(size, `"`)+": want 1 to 4194304")
	}
	_, err = clm("--config_name", config, "--n_layer", "3")
	require.ErrorContains(t, err, "the model of config_name has its own")
	_, err = clm("--config_name", config, "--vocab_size", "260", "--block_size", "17")
	require.ErrorContains(t, err, "block_size 17 is more than the model's 16 positions")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "resnet"}`), 0o600))
	_, err = clm("--config_name", config, "--vocab_size", "260")
	require.ErrorContains(t, err, "config.json")
}
