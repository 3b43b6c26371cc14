// SPDX-License-Identifier: Apache-2.0

package language

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

// Tuned is a saved model that learns rows of texts. Files beside its weights change with what it learns.
type Tuned[M models.Configured] struct {
	*models.Pretrained[M]
	// Line prints facts, as program.Process.Line does.
	Line func(name string, facts ...string)
}

// Texts say how rows become the tokens of a model.
type Texts struct {
	ChatTemplate  string // file of one that takes the place of the model's; "": the model's
	EOSToken      string // that ends an answer; "": the tokenizer's
	Conversations bool   // the chat template renders the rows
	Scores        bool   // the model scores texts and does not continue them
}

// Encoder returns the encoder of rows, and the token for padding. Where the token that ends the answers of the rows is
// none at which the model stops, it is added to generation_config.json, so that whatever generates with the saved model
// stops there.
func (t *Tuned[M]) Encoder(s Texts) (e chat.Encoder, pad int32, err error) {
	special, err := chat.SpecialTokens(t.Dir)
	if err != nil {
		return e, 0, err
	}
	e.Tokenizer = t.Tokenizer
	if e.Template, err = t.template(s.ChatTemplate, special); err != nil {
		return e, 0, err
	}
	var ends []int32
	if !s.Scores {
		if ends, err = t.stops(); err != nil {
			return e, 0, err
		}
	}
	e.EOS = cmp.Or(s.EOSToken, special["eos_token"])
	if e.EOS == "" && len(ends) > 0 {
		e.EOS, _ = e.Tokenizer.Token(ends[0])
	}
	eos, ok := e.Tokenizer.TokenID(e.EOS)
	if !ok {
		return e, 0, fmt.Errorf("eos_token is %q: want a token of %s, or additional_special_tokens to add it", e.EOS,
			filepath.Join(t.Dir, models.TokenizerFile))
	}
	if !s.Scores {
		e.Ends = ends
		if err := t.extendStops(&e, eos, s); err != nil {
			return e, 0, err
		}
	}
	if s.EOSToken != "" && s.EOSToken != special["eos_token"] {
		if err := t.Edit("tokenizer_config.json", "eos_token", s.EOSToken); err != nil {
			return e, 0, err
		}
	}
	pad = eos // what is padding is no label, whatever token it is
	if id, ok := e.Tokenizer.TokenID(special["pad_token"]); ok {
		pad = id
	}
	return e, pad, nil
}

// template is the chat template of a file, or the model's; nil: there is none.
func (t *Tuned[M]) template(file string, special map[string]string) (*chat.Template, error) {
	if file == "" {
		found, err := chat.LoadTemplate(t.Dir)
		if errors.Is(err, chat.ErrNoTemplate) {
			return nil, nil
		}
		return found, err
	}
	found, err := chat.ReadTemplate(file)
	if err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	found.Special = special
	t.Replace(models.Sidecar{Name: chat.TemplateFile, Data: []byte(found.Source)})
	return found, nil
}

// stops are the tokens at which transformers stops the model: those of generation_config.json, or else of config.json.
func (t *Tuned[M]) stops() (ids []int32, err error) {
	var all []int
	if m, ok := any(t.Model).(interface{ EndTokens() []int }); ok {
		all = m.EndTokens()
	}
	text, err := t.File(generation.ConfigFile)
	if err == nil {
		own, err := generation.EndTokens(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Dir, err)
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

// extendStops adds the token that ends the answers of the rows to those at which the model stops.
func (t *Tuned[M]) extendStops(e *chat.Encoder, eos int32, s Texts) error {
	needed := []int32{eos}
	if e.Template != nil && s.Conversations {
		var err error
		if needed, err = e.Template.TurnEnds(e.Tokenizer); err != nil {
			return err
		}
		if s.EOSToken != "" {
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
	t.Line("stops", "at "+strings.Join(names, ", ")+" too", "written to "+generation.ConfigFile)
	return t.Edit(generation.ConfigFile, "eos_token_id", e.Ends)
}

// Edit changes a key of a file beside the weights, which is made if it is missing.
func (t *Tuned[M]) Edit(name, key string, value any) error {
	text, err := t.File(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if text, err = models.WithKey(text, key, value); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(t.Dir, name), err)
	}
	t.Replace(models.Sidecar{Name: name, Data: text})
	return nil
}

// Replace puts a file in place of the one that the model had.
func (t *Tuned[M]) Replace(file models.Sidecar) {
	t.Files = slices.DeleteFunc(t.Files, func(f models.Sidecar) bool { return f.Name == file.Name })
	t.Files = append(t.Files, file)
}
