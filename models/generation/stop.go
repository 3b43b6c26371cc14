// SPDX-License-Identifier: Apache-2.0

package generation

import "strings"

// Decoder turns tokens into text, as a tokenizer of data/tokenizers does.
type Decoder interface {
	DecodeText(ids []int32) (string, error)
}

// StopStrings is for Options.Stop: a text ends when one of the strings is in what its new tokens say, also where the
// string begins in one token and ends in another, or in the middle of one. The text is decoded again at each token, as
// far back as the longest string reaches. CutStop removes what follows.
func StopStrings(d Decoder, stops ...string) func(tokens []int) bool {
	longest := 0
	for _, s := range stops {
		longest = max(longest, len(s))
	}
	return func(tokens []int) bool {
		// A token may have no text of its own, so tokens are taken until there is enough text.
		for n := min(longest+1, len(tokens)); ; n = min(2*n, len(tokens)) {
			ids := make([]int32, n)
			for i, id := range tokens[len(tokens)-n:] {
				ids[i] = int32(id)
			}
			text, err := d.DecodeText(ids)
			if err != nil {
				return false // Generate reports ids that are none
			}
			if len(CutStop(text, stops...)) < len(text) {
				return true
			}
			if n == len(tokens) || len(text) > 2*longest {
				return false
			}
		}
	}
}

// CutStop is the text before the first of the strings.
func CutStop(text string, stops ...string) string {
	end := len(text)
	for _, s := range stops {
		if i := strings.Index(text, s); s != "" && i >= 0 {
			end = min(end, i)
		}
	}
	return text[:end]
}
