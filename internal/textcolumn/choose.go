// SPDX-License-Identifier: Apache-2.0

// Package textcolumn finds the text column of a data set by its usual names.
package textcolumn

import (
	"fmt"
	"slices"
	"strings"
)

// usual are the names of columns with texts, the likeliest first.
var usual = []string{"text", "sentence", "content", "review"}

// pairs are the names of columns of which each holds a part of what a model must read together: those of GLUE's tasks,
// of questions with answers, of instructions, of translations and summaries.
var pairs = [][2]string{
	{"text", "text_pair"}, {"text1", "text2"}, {"text_a", "text_b"},
	{"sentence1", "sentence2"}, {"sentence_a", "sentence_b"}, {"sent1", "sent2"}, {"premise", "hypothesis"},
	{"question1", "question2"}, {"question", "sentence"}, {"question", "context"}, {"question", "passage"},
	{"question", "answer"}, {"question", "response"}, {"query", "passage"}, {"query", "document"},
	{"query", "response"},
	{"anchor", "positive"}, {"instruction", "output"}, {"instruction", "response"}, {"prompt", "completion"},
	{"prompt", "response"}, {"prompt", "chosen"}, {"chosen", "rejected"}, {"input", "output"}, {"source", "target"},
	{"article", "highlights"}, {"article", "summary"}, {"document", "summary"}, {"dialogue", "summary"},
}

// chats are the names of columns with lists of messages.
var chats = []string{"messages", "conversations", "conversation"}

// never are names of columns that hold other strings than texts. So do those that end in _id.
var never = []string{"id", "idx", "index", "key", "guid", "uid", "uuid", "url", "label", "labels", "unnamed: 0"}

// Usual reports whether a column is named as one with texts.
func Usual(name string) bool { return slices.Contains(usual, strings.ToLower(name)) }

// Choose returns the place of the column of texts among names. text reports whether a column holds text and not
// numbers, lists or nothing; except are columns with another use. It is the first of text, sentence, content and
// review, or else the first that holds text and is not named like a key. Names are compared without regard to case.
//
// Columns that are a pair, as sentence1 and sentence2, are an error that names the second, unless a column text has
// both.
func Choose(names []string, text func(i int) bool, except ...string) (int, error) {
	place := func(name string) int {
		for i, n := range names {
			if strings.EqualFold(n, name) && text(i) && !slices.Contains(except, n) {
				return i
			}
		}
		return -1
	}
	for _, p := range pairs {
		first, second := place(p[0]), place(p[1])
		if first >= 0 && second >= 0 && (place("text") < 0 || p[0] == "text") {
			return 0, fmt.Errorf("the texts are pairs, of %s and %s: the second is not read yet: want the name of one "+
				"column, or a column text with both", names[first], names[second])
		}
	}
	for _, name := range usual {
		if i := place(name); i >= 0 {
			return i, nil
		}
	}
	for i, name := range names {
		lower := strings.ToLower(name)
		key := slices.Contains(never, lower) || strings.HasSuffix(lower, "_id")
		if text(i) && !key && !slices.Contains(except, name) {
			return i, nil
		}
	}
	for _, name := range names {
		if slices.Contains(chats, strings.ToLower(name)) {
			return 0, fmt.Errorf("the column %s holds chats, which are not read yet: want a column text with all "+
				"of each", name)
		}
	}
	return 0, fmt.Errorf("none of the columns %s holds texts: want one that does, as text", strings.Join(names, ", "))
}
