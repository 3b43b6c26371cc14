// SPDX-License-Identifier: Apache-2.0

//go:build differential

package trainer_test

import "strings"

// difference is a difference that stays, with its row in docs/differences-from-huggingface.md.
type difference struct {
	heading, row string
	explains     func(c *randomCase, m mismatch) bool
}

// explain is the name of the difference that explains a mismatch, "" if none does.
func explain(c *randomCase, m mismatch) string {
	for _, d := range differences {
		if d.explains(c, m) {
			return d.row
		}
	}
	return ""
}

var differences = []difference{
	{"Callbacks and logs", "Records of training steps also have speed and memory", func(c *randomCase, m mismatch) bool {
		return m.place == "record" && m.want == "nothing" && (strings.HasPrefix(m.key, "memory_") || strings.HasPrefix(m.key, "train_"))
	}},
	{"Evaluation and data", "There is no `eval_model_preparation_time`", func(c *randomCase, m mismatch) bool {
		return strings.HasSuffix(m.key, "_model_preparation_time") && m.got == "nothing"
	}},
}
