// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/gguf"
)

// tokenizerPrefix is what the keys of a tokenizer begin with.
const tokenizerPrefix = "tokenizer.ggml."

// special is what a file says of tokens by their number, and of the chat template.
type special struct {
	tokens             []string
	bos, eos, pad, unk int   // -1: none
	ends               []int // that end an answer, eos first
	addBOS, addEOS     bool
	template           string // "": none
}

// endOfTurn are the spellings of tokens that end a turn of a chat, for files that name none but the end of a text.
var endOfTurn = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|return|>"}

// readSpecial reads them.
func readSpecial(f *gguf.File) (*special, error) {
	s := &special{}
	var ok bool
	if s.tokens, ok = f.Metadata[tokenizerPrefix+"tokens"].Texts(); !ok {
		return nil, errors.New(tokenizerPrefix + "tokens is missing: want a file with its tokenizer")
	}
	for key, id := range map[string]*int{"bos": &s.bos, "eos": &s.eos, "padding": &s.pad, "unknown": &s.unk} {
		var err error
		if *id, err = s.id(f, key); err != nil {
			return nil, err
		}
	}
	if v := f.Metadata["tokenizer.chat_template"]; v.Len() > 0 {
		if s.template, ok = v.Text(); !ok {
			return nil, fmt.Errorf("tokenizer.chat_template is %s: want a text", v)
		}
	}
	if s.eos >= 0 {
		s.ends = []int{s.eos}
	}
	for _, key := range []string{"eot", "eom"} {
		id, err := s.id(f, key)
		if err != nil {
			return nil, err
		}
		s.end(id)
	}
	for _, name := range endOfTurn {
		if strings.Contains(s.template, name) {
			s.end(slices.Index(s.tokens, name))
		}
	}
	add := func(key string, to *bool, otherwise bool) error {
		v := f.Metadata[tokenizerPrefix+key]
		if *to, ok = v.Bool(); ok {
			return nil
		}
		*to = otherwise
		if v.Len() > 0 {
			return fmt.Errorf("%s%s is %s: want true or false", tokenizerPrefix, key, v)
		}
		return nil
	}
	return s, errors.Join(add("add_bos_token", &s.addBOS, beginsByDefault(f)), add("add_eos_token", &s.addEOS, false))
}

// id is the number of a token that a key names, -1 if it is missing.
func (s *special) id(f *gguf.File, key string) (int, error) {
	key = tokenizerPrefix + key + "_token_id"
	v := f.Metadata[key]
	n, ok := v.Int()
	switch {
	case v.Len() == 0:
		return -1, nil
	case !ok || n < 0 || n >= int64(len(s.tokens)):
		return -1, fmt.Errorf("%s is %s: want one of the %d tokens", key, v, len(s.tokens))
	}
	return int(n), nil
}

// end adds a token that ends answers.
func (s *special) end(id int) {
	if id >= 0 && !slices.Contains(s.ends, id) {
		s.ends = append(s.ends, id)
	}
}

// ids writes the numbers of tokens into config.json, or generation_config.json.
func (s *special) ids(c settings) {
	for key, id := range map[string]int{"bos_token_id": s.bos, "pad_token_id": s.pad} {
		c[key] = nil
		if id >= 0 {
			c[key] = id
		}
	}
	switch len(s.ends) {
	case 0:
		c["eos_token_id"] = nil
	case 1:
		c["eos_token_id"] = s.ends[0]
	default:
		c["eos_token_id"] = s.ends
	}
}

// generationConfig is generation_config.json: where an answer ends. How tokens are drawn a file does not say.
func generationConfig(f *gguf.File) ([]byte, error) {
	s, err := readSpecial(f)
	if err != nil {
		return nil, err
	}
	c := settings{}
	s.ids(c)
	return encode(c)
}

// named are the tokens with a role, by transformers' names.
func (s *special) named() settings {
	c := settings{}
	for key, id := range map[string]int{"bos_token": s.bos, "eos_token": s.eos, "pad_token": s.pad,
		"unk_token": s.unk} {
		if id >= 0 {
			c[key] = s.tokens[id]
		}
	}
	return c
}

// specialTokens is special_tokens_map.json.
func specialTokens(f *gguf.File) ([]byte, error) {
	s, err := readSpecial(f)
	if err != nil {
		return nil, err
	}
	return encode(s.named())
}

// tokenizerConfig is tokenizer_config.json.
func tokenizerConfig(f *gguf.File) ([]byte, error) {
	s, err := readSpecial(f)
	if err != nil {
		return nil, err
	}
	c := s.named()
	// The class reads tokenizer.json as it is; the classes of model families change parts of it.
	c["tokenizer_class"] = "PreTrainedTokenizerFast"
	c["clean_up_tokenization_spaces"] = false
	c["add_bos_token"], c["add_eos_token"] = s.addBOS, s.addEOS // llama.cpp reads them
	if name, _, err := architectureOf(f); err == nil {
		if n, ok := f.Metadata[name+".context_length"].Int(); ok {
			c["model_max_length"] = n
		}
	}
	return encode(c)
}

// template is chat_template.jinja; nil if there is none.
func template(f *gguf.File) ([]byte, error) {
	s, err := readSpecial(f)
	if err != nil || s.template == "" {
		return nil, err
	}
	return []byte(s.template), nil
}
