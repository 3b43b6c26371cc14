// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/tensor"
)

// textModel is a saved model that reads texts: with a classifier's head, or as a language model.
type textModel interface {
	models.Configured
	models.TokenReader
}

// open reads a saved model's folder.
func open(dir string) (*models.Pretrained[textModel], error) {
	return models.OpenPretrained[textModel](tensor.CPU(), dir, "a model that reads texts, such as "+
		"GPT2ForSequenceClassification or GPT2LMHeadModel")
}

// tokenizerConfig is what this program reads of tokenizer_config.json.
type tokenizerConfig struct {
	PadToken       *tokenName `json:"pad_token"`
	TruncationSide string     `json:"truncation_side" null:"ok"`

	text []byte // nil if the folder has none
}

// tokenName is a token by its text, or by an object with it.
type tokenName string

// UnmarshalJSON implements json.Unmarshaler.
func (n *tokenName) UnmarshalJSON(text []byte) error {
	var token struct{ Content string }
	if json.Unmarshal(text, &token.Content) != nil && json.Unmarshal(text, &token) != nil {
		return errors.New("want a token's text")
	}
	*n = tokenName(token.Content)
	return nil
}

func readTokenizerConfig(p *models.Pretrained[textModel]) (c tokenizerConfig, err error) {
	c.text, err = p.File(tokenizerConfigFile)
	if err != nil {
		return c, nil // there is none
	}
	if err := jsonfile.Unmarshal(c.text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", filepath.Join(p.Dir, tokenizerConfigFile), err)
	}
	return c, nil
}

// padToken is the token for padding; nil if none is named that the tokenizer has.
func (c *tokenizerConfig) padToken(tok *tokenizers.Tokenizer) *int {
	if c.PadToken == nil {
		return nil
	}
	if id, ok := tok.TokenID(string(*c.PadToken)); ok {
		return new(int(id))
	}
	return nil
}

// reader makes a model's inputs as transformers' tokenizer does: cut to a length, with the tokenizer's special tokens.
type reader struct {
	tok  *tokenizers.Tokenizer
	pad  int32
	left bool // long texts lose their beginning (truncation_side)
}

func newReader(m *gpt2.Classifier, tok *tokenizers.Tokenizer, config tokenizerConfig) reader {
	return reader{tok, int32(*m.Cfg.PadTokenID), config.TruncationSide == "left"}
}

// fit is a text's tokens in at most so many places. One without any token becomes a single token of padding, since a
// model must read something.
func (r reader) fit(ids []int32, length int) []int32 {
	if over := len(ids) - max(length-r.tok.NumSpecialTokens(), 0); over > 0 && r.left {
		ids = ids[over:]
	} else if over > 0 {
		ids = ids[:len(ids)-over]
	}
	if ids = r.tok.AddSpecialTokens(ids); len(ids) == 0 {
		return []int32{r.pad}
	}
	return ids[:min(len(ids), length)]
}
