// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/gguf"
)

// The values of tokenizer.ggml.token_type.
const (
	normalToken = iota + 1
	unknownToken
	controlToken
	userToken
	unusedToken
	byteToken
)

// vocabulary is a file's tokens.
type vocabulary struct {
	*special
	kinds []int64
	ids   map[string]int // those that tokenizer.json has
}

// space stands for a space in the vocabularies of SentencePiece.
const space = "▁"

// tokenizer is tokenizer.json.
func tokenizer(f *gguf.File) ([]byte, error) {
	s, err := readSpecial(f)
	if err != nil {
		return nil, err
	}
	v := &vocabulary{special: s}
	switch kind := kind(f); kind {
	case bytePairs, sentencePiece:
		err = v.read(f, kind)
	default:
		return nil, fmt.Errorf("%smodel is %s: want %s (pairs of bytes) or %s (SentencePiece's pairs of characters)",
			tokenizerPrefix, f.Metadata[tokenizerPrefix+"model"], bytePairs, sentencePiece)
	}
	if err != nil {
		return nil, err
	}
	doc := settings{"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": v.added(f)}
	if kind(f) == bytePairs {
		err = v.bytePairs(f, doc)
	} else {
		err = v.sentencePiece(f, doc)
	}
	if err != nil {
		return nil, err
	}
	return encode(doc)
}

// read checks the tokens. What fills a vocabulary up to the model's size is no token of its tokenizer.
func (v *vocabulary) read(f *gguf.File, kind string) error {
	if types := f.Metadata[tokenizerPrefix+"token_type"]; types.Len() == len(v.tokens) {
		v.kinds, _ = types.Ints()
	} else if types.Len() > 0 {
		return fmt.Errorf("%stoken_type has %d elements: want one for each of the %d tokens", tokenizerPrefix,
			types.Len(), len(v.tokens))
	}
	if v.kinds == nil {
		v.kinds = slices.Repeat([]int64{normalToken}, len(v.tokens))
	}
	for _, id := range append([]int{v.bos, v.eos, v.pad}, v.ends...) {
		if id >= 0 && v.kinds[id] == normalToken {
			v.kinds[id] = controlToken
		}
	}
	v.ids = make(map[string]int, len(v.tokens))
	for id, token := range v.tokens {
		if !utf8.ValidString(token) {
			return fmt.Errorf("token %d is %.100q, which is not UTF-8", id, token)
		}
		if v.kinds[id] == unusedToken && strings.HasPrefix(token, "[PAD") {
			continue
		}
		if other, twice := v.ids[v.spelled(id, kind)]; twice {
			return fmt.Errorf("tokens %d and %d are both %.100q", other, id, token)
		}
		v.ids[v.spelled(id, kind)] = id
	}
	return nil
}

// spelled is a token as tokenizer.json has it. Gemma's files have runs of spaces as they are.
func (v *vocabulary) spelled(id int, kind string) string {
	token := v.tokens[id]
	if kind == sentencePiece && token != "" && strings.Trim(token, " ") == "" {
		return strings.Repeat(space, len(token))
	}
	return token
}

// added are the tokens that are found in a text as a whole: those of control, and those of users.
func (v *vocabulary) added(f *gguf.File) []settings {
	arch, _ := f.Metadata["general.architecture"].Text()
	phi3 := arch == "phi3" && kind(f) == sentencePiece
	list := []settings{}
	for id, token := range v.tokens {
		isSpecial := v.kinds[id] == controlToken || v.kinds[id] == unknownToken
		isUsers := v.kinds[id] == userToken && v.spelled(id, kind(f)) == token
		if !isSpecial && !isUsers || token == "" {
			continue
		}
		list = append(list, settings{"id": id, "content": token, "single_word": false, "lstrip": false,
			"rstrip": phi3 && slices.Contains(phi3Turns, token), "normalized": false, "special": isSpecial})
	}
	return list
}

// phi3Turns are tokens of Phi-3 that take the white space behind them, which its files do not say.
var phi3Turns = []string{"</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|placeholder1|>",
	"<|placeholder2|>", "<|placeholder3|>", "<|placeholder4|>", "<|placeholder5|>", "<|placeholder6|>"}

// bytePairs completes the tokenizer of a vocabulary of bytes.
func (v *vocabulary) bytePairs(f *gguf.File, doc settings) error {
	how, err := splitOf(f)
	if err != nil {
		return err
	}
	merges, ok := f.Metadata[tokenizerPrefix+"merges"].Texts()
	if !ok {
		return fmt.Errorf("%smerges is missing: want the list of the pairs that are merged", tokenizerPrefix)
	}
	pairs := make([][2]string, len(merges))
	for i, line := range merges {
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return fmt.Errorf("%smerges has %.100q at %d: want two tokens with a space between", tokenizerPrefix,
				line, i)
		}
		pairs[i] = [2]string{left, right}
	}
	doc["normalizer"] = nil
	if how.nfc {
		doc["normalizer"] = settings{"type": "NFC"}
	}
	byteLevel := settings{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true}
	doc["pre_tokenizer"], doc["decoder"] = sequence("pretokenizers", how.steps), byteLevel
	doc["post_processor"] = byteLevel
	if around := v.around(); around != nil {
		doc["post_processor"] = sequence("processors", []settings{byteLevel, around})
	}
	doc["model"] = v.model(pairs, settings{"unk_token": nil, "fuse_unk": false, "byte_fallback": false,
		"ignore_merges": how.whole})
	return nil
}

// sentencePiece completes the tokenizer of a vocabulary of characters.
func (v *vocabulary) sentencePiece(f *gguf.File, doc settings) error {
	scores, ok := f.Metadata[tokenizerPrefix+"scores"].Floats()
	if !ok || len(scores) != len(v.tokens) {
		return fmt.Errorf("%sscores has %d numbers: want one for each of the %d tokens", tokenizerPrefix, len(scores),
			len(v.tokens))
	}
	arch, _ := f.Metadata["general.architecture"].Text()
	gemma := strings.HasPrefix(arch, "gemma")
	if gemma { // its scores are not in the order of its merges, which its ids are in
		for id := range scores {
			scores[id] = -float64(id)
		}
	}
	pairs, err := v.merges(scores)
	if err != nil {
		return err
	}
	prefix := true
	if b, ok := f.Metadata[tokenizerPrefix+"add_space_prefix"].Bool(); ok {
		prefix = b
	}
	replace := func(from, to string) settings {
		return settings{"type": "Replace", "pattern": settings{"String": from}, "content": to}
	}
	normalizers, decoders := []settings{replace(" ", space)}, []settings{replace(space, " "), {"type": "ByteFallback"},
		{"type": "Fuse"}}
	if prefix {
		normalizers = append([]settings{{"type": "Prepend", "prepend": space}}, normalizers...)
		decoders = append(decoders, settings{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	doc["normalizer"], doc["decoder"] = sequence("normalizers", normalizers), sequence("decoders", decoders)
	doc["pre_tokenizer"], doc["post_processor"] = nil, nil
	if around := v.around(); around != nil {
		doc["post_processor"] = around
	}
	var unknown any
	if v.unk >= 0 {
		unknown = v.tokens[v.unk]
	} else if i := slices.Index(v.kinds, unknownToken); i >= 0 {
		unknown = v.tokens[i]
	}
	doc["model"] = v.model(pairs, settings{"unk_token": unknown, "fuse_unk": true, "byte_fallback": true,
		"ignore_merges": false})
	return nil
}

// maxPiece bounds a token that is merged of others, in bytes, and maxMerges their number.
const (
	maxPiece  = 256
	maxMerges = 1 << 21
)

// merges are the pairs whose merges give the tokens that SentencePiece finds, best scores first: a token of the
// vocabulary comes of any two that it can be cut into.
func (v *vocabulary) merges(scores []float64) ([][2]string, error) {
	type pair struct {
		left, right string
		id          int
	}
	var list []pair
	for id := range v.tokens {
		if k := v.kinds[id]; k != normalToken && k != userToken && k != unusedToken {
			continue
		}
		piece := v.spelled(id, sentencePiece)
		if len(piece) > maxPiece {
			return nil, fmt.Errorf("token %d has %d bytes: want at most %d", id, len(piece), maxPiece)
		}
		start := len(list)
		for i := range piece {
			_, left := v.ids[piece[:i]]
			if _, right := v.ids[piece[i:]]; left && right && i > 0 {
				list = append(list, pair{piece[:i], piece[i:], id})
			}
		}
		slices.SortFunc(list[start:], func(a, b pair) int {
			return cmp.Or(cmp.Compare(v.ids[a.left], v.ids[b.left]), cmp.Compare(v.ids[a.right], v.ids[b.right]))
		})
		if len(list) > maxMerges {
			return nil, fmt.Errorf("more than %d pairs of tokens are tokens: want fewer", maxMerges)
		}
	}
	length := utf8.RuneCountInString
	slices.SortStableFunc(list, func(a, b pair) int { // as transformers' generate_merges
		return cmp.Or(cmp.Compare(scores[b.id], scores[a.id]), length(b.left)-length(a.left),
			length(b.right)-length(a.right))
	})
	pairs := make([][2]string, len(list))
	for i, p := range list {
		pairs[i] = [2]string{p.left, p.right}
	}
	return pairs, nil
}

// model is the part of tokenizer.json with the vocabulary.
func (v *vocabulary) model(pairs [][2]string, more settings) settings {
	m := settings{"type": "BPE", "dropout": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
		"vocab": v.ids, "merges": pairs}
	for key, value := range more {
		m[key] = value
	}
	return m
}

// around is the post-processor that begins or ends a text; nil if nothing does.
func (v *vocabulary) around() settings {
	tokens := settings{}
	token := func(id, segment int) any {
		name := v.tokens[id]
		tokens[name] = settings{"id": name, "ids": []int{id}, "tokens": []string{name}}
		return settings{"SpecialToken": settings{"id": name, "type_id": segment}}
	}
	one := func(name string, segment int) (list []any) {
		if v.addBOS && v.bos >= 0 {
			list = append(list, token(v.bos, segment))
		}
		list = append(list, settings{"Sequence": settings{"id": name, "type_id": segment}})
		if v.addEOS && v.eos >= 0 {
			list = append(list, token(v.eos, segment))
		}
		return list
	}
	single, second := one("A", 0), one("B", 1)
	if len(tokens) == 0 {
		return nil
	}
	return settings{"type": "TemplateProcessing", "single": single, "pair": append(slices.Clone(single), second...),
		"special_tokens": tokens}
}

// sequence is one component, or several in a row.
func sequence(key string, list []settings) any {
	if len(list) == 1 {
		return list[0]
	}
	return settings{"type": "Sequence", key: list}
}
