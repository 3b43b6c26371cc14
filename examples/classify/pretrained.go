// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
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

// tokenizerConfig is tokenizer_config.json; nil if the folder has none.
func tokenizerConfig(p *models.Pretrained[textModel]) []byte {
	text, err := p.File(tokenizerConfigFile)
	if err != nil {
		return nil
	}
	return text
}

// padToken is the token that tokenizer_config.json names for padding; nil if it names none.
func padToken(tok *tokenizers.Tokenizer, tokConfig []byte) *int {
	var config struct {
		PadToken json.RawMessage `json:"pad_token"`
	}
	if json.Unmarshal(tokConfig, &config) != nil {
		return nil // none, or not read by transformers either
	}
	var token struct{ Content string } // or a string
	if json.Unmarshal(config.PadToken, &token.Content) != nil && json.Unmarshal(config.PadToken, &token) != nil {
		return nil
	}
	if id, ok := tok.TokenID(token.Content); ok {
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

func newReader(m *gpt2.Classifier, tok *tokenizers.Tokenizer, tokConfig []byte) reader {
	var config struct {
		TruncationSide string `json:"truncation_side"`
	}
	_ = json.Unmarshal(tokConfig, &config) // there may be none
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
