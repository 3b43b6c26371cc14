// SPDX-License-Identifier: Apache-2.0

package textcolumn

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoose(t *testing.T) {
	for names, want := range map[string]string{ // a column that begins with # holds numbers
		"#idx text label":               "text",
		"#idx sentence label":           "sentence",
		"title content label":           "content",
		"title Review":                  "Review",
		"review sentence":               "sentence",
		"id body label":                 "body",
		"#length review_id comment":     "comment",
		"instruction input output text": "text",
		"sentence1 #sentence2":          "sentence1",
		"premise label":                 "premise",
		"#text body":                    "body",
		"#idx sentence1 sentence2 label": "ERROR the texts are pairs, of sentence1 and sentence2: the second is " +
			"not read",
		"premise hypothesis label #idx": "ERROR of premise and hypothesis",
		"question sentence label":       "ERROR of question and sentence",
		"instruction input output":      "ERROR of instruction and output",
		"text text_pair":                "ERROR of text and text_pair",
		"Question1 Question2 text_b":    "ERROR of Question1 and Question2",
		"id #messages":                  "ERROR the column messages holds chats, which are not read yet",
		"#a #b id label":                "ERROR none of the columns a, b, id, label holds texts",
	} {
		columns, numbers := strings.Fields(names), map[int]bool{}
		for i, c := range columns {
			columns[i], numbers[i] = strings.CutPrefix(c, "#")
		}
		at, err := Choose(columns, func(i int) bool { return !numbers[i] }, "label")
		if fault, ok := strings.CutPrefix(want, "ERROR "); ok {
			require.ErrorContains(t, err, fault, names)
			continue
		}
		require.NoError(t, err, names)
		require.Equal(t, want, columns[at], names)
	}
}
