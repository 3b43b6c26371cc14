// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"encoding/json"
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

// preferred is the name that is written of several for the same way.
var preferred = []string{"gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "deepseek-r1-qwen", "gpt-4o", "tekken"}

// Pre names the way in which a tokenizer.json with a vocabulary of bytes cuts text: the value of tokenizer.ggml.pre.
// whole is the model's ignore_merges, nfc whether text is put into the normal form C first, which llama.cpp does for
// none.
func Pre(preTokenizer []byte, whole, nfc bool) (string, error) {
	steps, err := canonical(preTokenizer)
	if err != nil {
		return "", err
	}
	found := ""
	for _, name := range slices.Backward(preferred) {
		s := splits[name]
		text, err := encode(sequence("pretokenizers", s.steps))
		if err != nil {
			return "", err
		}
		known, err := canonical(text)
		if err != nil {
			return "", err
		}
		if slices.Equal(steps, known) && s.whole == whole && (found == "" || s.nfc == nfc) {
			found = name
		}
	}
	if found == "" {
		return "", fmt.Errorf("its pre-tokenizer cuts text by %s, with ignore_merges %t, for which llama.cpp has no "+
			"name that is known here: want the way of %s", strings.Join(steps, ", then "), whole,
			strings.Join(preferred, ", "))
	}
	return found, nil
}

// canonical is a pre-tokenizer as a list of what cuts text, without what changes no token.
func canonical(preTokenizer []byte) (steps []string, err error) {
	var c struct {
		Type          string            `json:"type"`
		PreTokenizers []json.RawMessage `json:"pretokenizers"`
		Individual    bool              `json:"individual_digits"`
		AddPrefix     bool              `json:"add_prefix_space"`
		UseRegex      *bool             `json:"use_regex"`
		Behavior      string            `json:"behavior"`
		Invert        bool              `json:"invert"`
		Pattern       struct{ Regex, String string }
	}
	if err := json.Unmarshal(preTokenizer, &c); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	switch {
	case c.Type == "Sequence":
		for _, one := range c.PreTokenizers {
			more, err := canonical(one)
			if err != nil {
				return nil, err
			}
			steps = append(steps, more...)
		}
		return steps, nil
	case c.Type == "ByteLevel" && !c.AddPrefix && (c.UseRegex == nil || *c.UseRegex):
		return []string{"ByteLevel with GPT-2's expression"}, nil
	case c.Type == "ByteLevel" && !c.AddPrefix:
		return []string{"ByteLevel"}, nil
	case c.Type == "Digits" && c.Individual:
		return []string{"digits one by one"}, nil
	case c.Type == "Split" && c.Pattern.Regex != "" &&
		(c.Behavior == "Isolated" && !c.Invert || c.Behavior == "Removed" && c.Invert):
		return []string{fmt.Sprintf("the expression %.300q", c.Pattern.Regex)}, nil
	}
	return []string{string(preTokenizer)}, nil
}

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
