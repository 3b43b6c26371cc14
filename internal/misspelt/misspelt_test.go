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
