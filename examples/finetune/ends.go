// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
)

// setEncoder prepares the encoder of rows, and the tokens at which the saved model will stop.
func (j *job) setEncoder(template *chat.Template, special map[string]string) error {
	e := chat.Encoder{Tokenizer: j.base.Tokenizer, Template: template, AssistantOnly: j.AssistantOnlyLoss,
		AllTokens: !j.CompletionOnlyLoss, MaxLength: j.MaxLength}
	var err error
	if e.Ends, err = j.stops(); err != nil {
		return err
	}
	e.EOS = cmp.Or(j.EOSToken, special["eos_token"])
	if e.EOS == "" && len(e.Ends) > 0 {
		e.EOS, _ = e.Tokenizer.Token(e.Ends[0])
	}
	eos, ok := e.Tokenizer.TokenID(e.EOS)
	if !ok {
		return fmt.Errorf("eos_token is %q: want a token of %s, or additional_special_tokens to add it", e.EOS,
			filepath.Join(j.ModelNameOrPath, models.TokenizerFile))
	}
	if err := j.extendStops(&e, eos); err != nil {
		return err
	}
	if j.EOSToken != "" && j.EOSToken != special["eos_token"] {
		if err := j.edit("tokenizer_config.json", "eos_token", j.EOSToken); err != nil {
			return err
		}
	}
	j.pad = eos // what is padding is no label, whatever token it is
	if pad, ok := e.Tokenizer.TokenID(special["pad_token"]); ok {
		j.pad = pad
	}
	if n := j.base.Model.ContextLength(); e.MaxLength == 0 || e.MaxLength > n {
		e.MaxLength = n
	}
	j.encoder = e
	return nil
}

// stops are the tokens at which transformers stops the model: those of generation_config.json, or else of config.json.
func (j *job) stops() (ids []int32, err error) {
	all := j.base.Model.EndTokens()
	text, err := j.base.File(generation.ConfigFile)
	if err == nil {
		own, err := generation.EndTokens(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", j.ModelNameOrPath, err)
		}
		if len(own) > 0 {
			all = own
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, id := range all {
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// extendStops adds the token that ends the answers of the rows to those at which the model stops, and to
// generation_config.json, so that whatever generates with the saved model stops there.
func (j *job) extendStops(e *chat.Encoder, eos int32) error {
	needed := []int32{eos}
	if row := j.rows[0]; e.Template != nil && (row.Messages != nil || row.PromptMessages != nil) {
		var err error
		if needed, err = e.Template.TurnEnds(e.Tokenizer); err != nil {
			return err
		}
		if j.EOSToken != "" {
			needed = append(needed, eos)
		}
	}
	var names []string
	for _, id := range needed {
		if !slices.Contains(e.Ends, id) {
			name, _ := e.Tokenizer.Token(id)
			names = append(names, name)
			e.Ends = append(e.Ends, id)
		}
	}
	if len(names) == 0 {
		return nil
	}
	j.Line("stops", "at "+strings.Join(names, ", ")+" too", "written to "+generation.ConfigFile)
	return j.edit(generation.ConfigFile, "eos_token_id", e.Ends)
}

// edit changes a key of a file beside the weights, which is made if it is missing.
func (j *job) edit(name, key string, value any) error {
	text, err := j.base.File(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if text, err = models.WithKey(text, key, value); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(j.ModelNameOrPath, name), err)
	}
	j.replace(models.Sidecar{Name: name, Data: text})
	return nil
}

// replace puts a file in place of the one that the model had.
func (j *job) replace(file models.Sidecar) {
	j.base.Files = slices.DeleteFunc(j.base.Files, func(f models.Sidecar) bool { return f.Name == file.Name })
	j.base.Files = append(j.base.Files, file)
}
