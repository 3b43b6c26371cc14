// SPDX-License-Identifier: Apache-2.0

package misspelt_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/misspelt"
)

func TestDistance(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"env", "evn", 1}, {"kitten", "sitting", 3}, {"same", "same", 0}} {
		require.Equal(t, row.want, misspelt.Distance(row.a, row.b), row)
	}
}

func TestSuggestion(t *testing.T) {
	names := []string{"fp16", "max_grad_norm", "per_device_train_batch_size"}
	for name, want := range map[string]string{"fp61": "did you mean --fp16?",
		"grad_norm":        "did you mean --max_grad_norm?",
		"train_batch_size": "did you mean --per_device_train_batch_size?", "quite_another": "nothing"} {
		require.Equal(t, want, misspelt.Suggestion(name, "--", names, "nothing"), name)
	}
}

// A name that begins longer ones is short for one of them, unless it is another with one mistake.
func TestNearestPrefersBeginnings(t *testing.T) {
	names := []string{"adamw_torch", "adamw_hf", "lamb", "lion_32bit", "adamw_bnb_8bit", "comet_ml", "muon"}
	for name, want := range map[string]string{"lion": "lion_32bit", "adamw_bnb": "adamw_bnb_8bit", "comet": "comet_ml",
		"adamw": "adamw_torch", "lamp": "lamb", "bnb_8bit": "adamw_bnb_8bit", "adanw_hf": "adamw_hf", "ada": ""} {
		require.Equal(t, want, misspelt.Nearest(name, names), name)
	}
}
