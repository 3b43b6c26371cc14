// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/gguf"
)

// split is how a vocabulary of bytes cuts text before it merges, which a file names by tokenizer.ggml.pre.
type split struct {
	steps []settings // pre-tokenizers of tokenizer.json
	whole bool       // ignore_merges: a word that is a token is that token
	bos   bool       // a text begins with the token of beginning unless the file says otherwise
	nfc   bool       // text is put into the normal form C first
}

// The regular expressions of tokenizer.json files.
const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	marksAndRest = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	cl100k       = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}` + marksAndRest
	qwen         = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}` + marksAndRest
	upper, lower = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	slashAndRest = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	o200k        = upper + `*` + lower + `+` + contractions + `?|` + upper + `+` + lower + `*` + contractions +
		`?|\p{N}{1,3}` + slashAndRest
	tekken = upper + `*` + lower + `+|` + upper + `+` + lower + `*|\p{N}` + slashAndRest
)

// byRegex cuts by an expression.
func byRegex(expr string) []settings {
	return []settings{
		{"type": "Split", "pattern": settings{"Regex": expr}, "behavior": "Isolated", "invert": false},
		{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
	}
}

// gpt2 cuts as GPT-2, after other steps.
func gpt2(first ...settings) []settings {
	return append(first, settings{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
		"use_regex": true})
}

// digits makes each digit a word.
func digits() settings { return settings{"type": "Digits", "individual_digits": true} }

// splits are the known ways by their names. Those of other families are not in the list: a wrong way gives a text other
// tokens than the model has learned.
var splits = func() map[string]split {
	known := map[string]split{}
	for names, s := range map[string]split{
		"gpt-2 phi-2 olmo mpt":           {steps: gpt2()},
		"smollm starcoder refact":        {steps: gpt2(digits())},
		"codeshell minerva-7b":           {steps: gpt2(digits())},
		"llama-bpe llama3 llama-v3":      {steps: byRegex(cl100k), whole: true, bos: true},
		"falcon3 pixtral":                {steps: byRegex(cl100k), whole: true, bos: true},
		"dbrx smaug-bpe glm4":            {steps: byRegex(cl100k)},
		"qwen2":                          {steps: byRegex(qwen), nfc: true},
		"deepseek-r1-qwen megrez grok-2": {steps: byRegex(qwen)},
		"gpt-4o":                         {steps: byRegex(o200k)},
		"tekken":                         {steps: byRegex(tekken), whole: true, bos: true},
	} {
		for name := range strings.FieldsSeq(names) {
			known[name] = s
		}
	}
	return known
}()

// splitOf finds the way of a file.
func splitOf(f *gguf.File) (split, error) {
	v := f.Metadata[tokenizerPrefix+"pre"]
	name, _ := v.Text()
	s, ok := splits[name]
	if !ok {
		return s, fmt.Errorf("%spre is %s, so that it is not known how text is cut into words: want one of %s, as "+
			"newer files have", tokenizerPrefix, v, strings.Join(slices.Sorted(maps.Keys(splits)), ", "))
	}
	return s, nil
}

// kind is the kind of a file's tokenizer, tokenizer.ggml.model.
func kind(f *gguf.File) string {
	name, _ := f.Metadata[tokenizerPrefix+"model"].Text()
	return name
}

// The kinds that are read.
const (
	bytePairs     = "gpt2"
	sentencePiece = "llama"
)

// beginsByDefault is add_bos_token of a file that does not say.
func beginsByDefault(f *gguf.File) bool {
	if kind(f) == sentencePiece {
		return true
	}
	s, err := splitOf(f)
	return err == nil && s.bos
}
