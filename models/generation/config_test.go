// SPDX-License-Identifier: Apache-2.0

package generation_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/generation"
)

// TestSaved reads files as published models have them, and refuses what it would not do.
func TestSaved(t *testing.T) {
	saved := func(text string) (generation.Options, error) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, generation.ConfigFile), []byte(text), 0o600))
		return generation.Saved(dir)
	}
	for text, want := range map[string]generation.Options{
		`{}`: {},
		`{"bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643], "pad_token_id": 151643,
			"temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0"}`: {
			Temperature: 0.6, TopK: 20, TopP: 0.95, EOS: []int{151645, 151643}},
		`{"_from_model_config": true, "eos_token_id": 2, "max_length": 4096, "num_beams": 1, "top_h": null}`: {
			EOS: []int{2}},
		`{"do_sample": true, "eos_token_id": null}`:              {Temperature: 1, TopK: 50},
		`{"do_sample": false, "temperature": 0.6, "top_p": 0.9}`: {},
		`{"max_new_tokens": 7, "min_new_tokens": 2, "no_repeat_ngram_size": 3}`: {
			MaxNewTokens: 7, MinNewTokens: 2, NoRepeatNGram: 3},
		`{"repetition_penalty": 1.05, "do_sample": true, "top_k": 0, "min_p": 1}`: {
			RepetitionPenalty: 1.05, Temperature: 1, MinP: 1},
	} {
		got, err := saved(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, want := range map[string]string{
		`{"num_beams": 4, "penalty_alpha": 0.6}`:     "num_beams is 4, penalty_alpha is 0.6: not supported",
		`{"eos_token_id": "x"}`:                      `eos_token_id is "x": want a token's id, or several`,
		`{"eos_token_id": [-1]}`:                     "want ids of at least 0",
		`{"do_sample": true, "temperature": 0}`:      "temperature is 0 and do_sample true",
		`{"do_sample": true, "top_p": 2}`:            "top_p = 2: want a probability in [0, 1]",
		`{"top_k": "many"}`:                          "top_k",
		`{"top_k": 1, "top_k": 2}`:                   "top_k",
		`{"suppress_tokens": [1], "top_p": 1} hello`: "behind the end",
		``: "it is empty: want JSON",
	} {
		_, err := saved(text)
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, generation.ConfigFile)
	}
	got, err := generation.Saved(t.TempDir())
	require.NoError(t, err)
	require.Equal(t, generation.Options{}, got)
}
