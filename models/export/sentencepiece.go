// SPDX-License-Identifier: Apache-2.0

package export

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/gguf"
)

// pieces sets the keys of a vocabulary of characters, which SentencePiece has made. llama.cpp merges the two tokens
// whose union is the token of the best score, so that the scores stand for the list of merges.
func (b *builder) pieces(f *tokenizerFile) error {
	prefix, err := f.spaces()
	if err != nil {
		return err
	}
	for i := range 256 {
		id, ok := f.Model.Vocab[fmt.Sprintf("<0x%02X>", i)]
		if !ok {
			return fmt.Errorf("byte_fallback without a token <0x%02X>: want one for each byte", i)
		}
		f.kinds[id] = byteToken
	}
	if u := f.Model.UnkToken; u != nil {
		if id, ok := f.Model.Vocab[*u]; ok {
			f.kinds[id] = unknownToken
			b.unknown = id
		}
	}
	scores, err := f.scores()
	if err != nil {
		return err
	}
	b.tokenList(f, "llama", "default")
	b.set(ggml+"scores", gguf.Float32s(scores))
	b.set(ggml+"add_space_prefix", gguf.Bool(prefix))
	return nil
}

// step is a normalizer or a pre-tokenizer.
type step struct {
	Type          string
	Normalizers   []step
	PreTokenizers []step
	Pattern       struct{ String string }
	Content       string
	Prepend       string
	Replacement   string
	PrependScheme string `json:"prepend_scheme"`
	Split         *bool
	Behavior      string
	Invert        bool
}

// flat are the steps of a sequence.
func (s step) flat() (list []step) {
	if s.Type != "Sequence" {
		return []step{s}
	}
	for _, one := range append(s.Normalizers, s.PreTokenizers...) {
		list = append(list, one.flat()...)
	}
	return list
}

// spaces checks that the mark of SentencePiece takes the place of spaces, and nothing else is done to a text. prefix:
// one is put before it.
func (f *tokenizerFile) spaces() (prefix bool, err error) {
	replaced := false
	for _, part := range []json.RawMessage{f.Normalizer, f.PreTokenizer} {
		if len(part) == 0 || string(part) == "null" {
			continue
		}
		var all step
		if err := json.Unmarshal(part, &all); err != nil {
			return false, err
		}
		for _, s := range all.flat() {
			switch {
			case s.Type == "Prepend" && s.Prepend == space:
				prefix = true
			case s.Type == "Replace" && s.Pattern.String == " " && s.Content == space:
				replaced = true
			case s.Type == "Metaspace" && s.Replacement == space && s.Split != nil && !*s.Split:
				prefix, replaced = s.PrependScheme != "never", true
			case s.Type == "Split" && s.Pattern.String == " " && replaced: // there are no spaces left
			default:
				return false, fmt.Errorf("%.200s: llama.cpp puts %s in place of spaces and does nothing else: want no "+
					"more", part, space)
			}
		}
	}
	if !replaced {
		return false, fmt.Errorf("spaces stay what they are: llama.cpp puts %s in their place", space)
	}
	return prefix, nil
}

// The scores of tokens that no two others are merged into, as in the files of others.
const (
	unusedScore = -10_000
	userScore   = -1000
	spacesScore = -1e9 // of runs of spaces
)

// scores are those of the tokens: the earlier a token is merged, the better. A list of merges that scores cannot stand
// for is an error: one that lacks a pair whose union is a token, or has the pairs of two tokens between each other.
func (f *tokenizerFile) scores() ([]float32, error) {
	order, runs, err := f.order()
	if err != nil {
		return nil, err
	}
	base := 0 // tokens before those of texts
	for base < len(f.kinds) && f.kinds[base] != normalToken {
		base++
	}
	ascending, last := true, -1
	for _, id := range order {
		ascending, last = ascending && id > last, id
	}
	scores := make([]float32, len(f.tokens))
	for id, kind := range f.kinds {
		switch {
		case kind == unusedToken:
			scores[id] = unusedScore
		case kind == userToken, kind == controlToken && id >= base:
			scores[id] = userScore
		case kind != normalToken:
		case runs && isRun(f.tokens[id]):
			scores[id] = spacesScore
		default:
			scores[id] = -float32(id - base)
		}
	}
	if !ascending {
		for rank, id := range order {
			scores[id] = -float32(rank)
		}
	}
	return scores, nil
}

// isRun reports whether a token is several spaces.
func isRun(token string) bool { return len(token) > len(space) && strings.Trim(token, space) == "" }

// order are the tokens that are merged of others, in the order of their merges. runs: those of runs of spaces, which
// have the same score in Llama 2, come last, lie between each other, and are left out.
func (f *tokenizerFile) order() (order []int, runs bool, err error) {
	listed := make(map[merge]bool, len(f.Model.Merges))
	done, last := map[string]bool{}, ""
	for i, m := range f.Model.Merges {
		listed[m] = true
		union := m[0] + m[1]
		id, ok := f.Model.Vocab[union]
		switch {
		case !ok:
			return nil, false, fmt.Errorf("merge %d makes %q, which is no token", i, union)
		case union == last:
			continue
		case done[union] && isRun(union):
			runs = true
		case done[union] || runs && !isRun(union):
			return nil, false, fmt.Errorf("merge %d of %q comes apart from the others of its token: SentencePiece's "+
				"come together", i, union)
		default:
			done[union] = true
			order = append(order, id)
		}
		last = union
	}
	if runs {
		order = slices.DeleteFunc(order, func(id int) bool { return isRun(f.tokens[id]) })
	}
	return order, runs, f.complete(listed)
}

// complete is an error if a pair is missing in the merges.
func (f *tokenizerFile) complete(listed map[merge]bool) error {
	for id, token := range f.tokens {
		if f.kinds[id] != normalToken {
			continue
		}
		for at := range token {
			pair := merge{token[:at], token[at:]}
			_, left := f.Model.Vocab[pair[0]]
			if _, right := f.Model.Vocab[pair[1]]; left && right && !listed[pair] {
				return fmt.Errorf("%q and %q are %q together, and no merge: SentencePiece merges any two tokens "+
					"that are one together", pair[0], pair[1], token)
			}
		}
	}
	return nil
}
