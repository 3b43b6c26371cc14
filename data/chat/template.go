// SPDX-License-Identifier: Apache-2.0

// Package chat turns conversations into the texts that language models were trained on, and into samples to train on.
// Use it to talk to a model, or to fine-tune one on chats: a [Template] is the chat template of a model, and renders as
// apply_chat_template of transformers does; a [Row] is a row of a data set in any of the usual forms; an [Encoder]
// makes samples of rows, with the tokens and labels of TRL's SFTTrainer, and [Collate] makes batches of them.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/lockstep-ml/lockstep/internal/jinja"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
)

// TemplateFile is the file of the chat template in the folder of a saved model.
const TemplateFile = "chat_template.jinja"

// Template is a chat template. It is safe for concurrent use.
type Template struct {
	// Source is its text.
	Source string
	// Path is where it was read, for errors; "" if it was not in a file.
	Path string
	// Special are texts that it refers to by names, such as bos_token and eos_token.
	Special map[string]string
	// Now is the time for templates that write a date; nil: time.Now. Give a fixed time to samples that must be the
	// same in each run.
	Now func() time.Time

	parsed *jinja.Template
}

// ParseTemplate reads a chat template. The error names the line, and what is not supported.
func ParseTemplate(source string) (*Template, error) {
	parsed, err := jinja.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return &Template{Source: source, parsed: parsed}, nil
}

// ReadTemplate reads a file with a chat template. Errors name the file.
func ReadTemplate(path string) (*Template, error) {
	source, err := modelfiles.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return parseIn(path, string(source))
}

// parseIn is ParseTemplate of what is in a place.
func parseIn(path, source string) (*Template, error) {
	t, err := ParseTemplate(source)
	if err != nil {
		return nil, (&Template{Path: path}).located(err)
	}
	t.Path = path
	return t, nil
}

// located is an error with the place of the template.
func (t *Template) located(err error) error {
	if t.Path == "" {
		return err
	}
	return fmt.Errorf("%w (in %s)", err, t.Path)
}

// ErrNoTemplate is the error of LoadTemplate for a folder without a chat template: a base model's.
var ErrNoTemplate = errors.New("there is no chat template: want chat_template.jinja, or chat_template in " +
	"tokenizer_config.json")

// maxFile bounds the files that LoadTemplate reads, in bytes.
const maxFile = 16 << 20

// tokenizerConfig is what tokenizer_config.json says about conversations.
type tokenizerConfig struct {
	Template *templates `json:"chat_template"`
	BOS      *tokenText `json:"bos_token"`
	EOS      *tokenText `json:"eos_token"`
	PAD      *tokenText `json:"pad_token"`
	UNK      *tokenText `json:"unk_token"`
}

// templates are one template, or several by names, of which one is called default.
type templates string

// UnmarshalJSON implements json.Unmarshaler.
func (t *templates) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, (*string)(t)) == nil {
		return nil
	}
	var list []struct{ Name, Template string }
	if json.Unmarshal(text, &list) == nil {
		for _, one := range list {
			if one.Name == "default" {
				*t = templates(one.Template)
				return nil
			}
		}
	}
	return errors.New("want a text, or a list with one that is named default")
}

// tokenText is a token by its text, or by an object with it.
type tokenText string

// UnmarshalJSON implements json.Unmarshaler.
func (n *tokenText) UnmarshalJSON(text []byte) error {
	var token struct{ Content *string }
	if json.Unmarshal(text, (*string)(n)) == nil {
		return nil
	}
	if json.Unmarshal(text, &token) != nil || token.Content == nil {
		return errors.New("want a token's text, or an object with its content")
	}
	*n = tokenText(*token.Content)
	return nil
}

// LoadTemplate reads the chat template in the folder of a saved model: chat_template.jinja, or else the key
// chat_template of tokenizer_config.json, which also has the special tokens. The error is ErrNoTemplate if it has none.
func LoadTemplate(dir string) (*Template, error) {
	config, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	t, err := ReadTemplate(filepath.Join(dir, TemplateFile))
	switch {
	case !errors.Is(err, fs.ErrNotExist):
	case config.Template == nil:
		return nil, fmt.Errorf("chat: %s: %w", dir, ErrNoTemplate)
	default:
		t, err = parseIn("chat_template of "+filepath.Join(dir, configFile), string(*config.Template))
	}
	if err != nil {
		return nil, err
	}
	t.Special = config.special()
	return t, nil
}

// SpecialTokens are the texts of the special tokens that tokenizer_config.json in the folder of a saved model names, as
// templates call them: bos_token, eos_token, pad_token and unk_token.
func SpecialTokens(dir string) (map[string]string, error) {
	config, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	return config.special(), nil
}

const configFile = "tokenizer_config.json"

// readConfig reads a file that may be missing.
func readConfig(dir string) (config tokenizerConfig, err error) {
	path := filepath.Join(dir, configFile)
	text, err := modelfiles.ReadFile(path, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return config, nil
	case err != nil:
		return config, fmt.Errorf("chat: %w", err)
	}
	if err := jsonfile.Unmarshal(text, &config); err != nil {
		return config, fmt.Errorf("chat: %s: %w", path, err)
	}
	return config, nil
}

func (c tokenizerConfig) special() map[string]string {
	all := map[string]string{}
	for name, token := range map[string]*tokenText{"bos_token": c.BOS, "eos_token": c.EOS, "pad_token": c.PAD,
		"unk_token": c.UNK} {
		if token != nil {
			all[name] = string(*token)
		}
	}
	return all
}

// Conversation is the input of a template.
type Conversation struct {
	// Messages is a JSON list of objects with a role and a content.
	Messages json.RawMessage
	// Tools is a JSON list of the functions that the model may call; nil: none.
	Tools json.RawMessage
	// GenerationPrompt ends the text with the beginning of an answer.
	GenerationPrompt bool
	// Variables are further variables of the template as JSON, such as enable_thinking.
	Variables map[string]json.RawMessage
}

// Span is the bytes of a text from Start to before End.
type Span struct{ Start, End int }

// Render is the text of a conversation, and the parts of it that the template marks as the assistant's by
// {% generation %}. The error of a template that refuses a conversation has its message.
func (t *Template) Render(c Conversation) (text string, assistant []Span, err error) {
	vars := map[string]any{"add_generation_prompt": c.GenerationPrompt, "documents": nil, "tools": nil}
	for name, token := range t.Special {
		vars[name] = token
	}
	if vars["messages"], err = jinja.FromJSON(c.Messages); err != nil {
		return "", nil, fmt.Errorf("chat: messages: %w", err)
	}
	if c.Tools != nil {
		if vars["tools"], err = jinja.FromJSON(c.Tools); err != nil {
			return "", nil, fmt.Errorf("chat: tools: %w", err)
		}
	}
	for name, v := range c.Variables {
		if vars[name], err = jinja.FromJSON(v); err != nil {
			return "", nil, fmt.Errorf("chat: %s: %w", name, err)
		}
	}
	text, spans, err := t.parsed.Render(vars, jinja.Limits{Now: t.Now})
	if err != nil {
		return "", nil, t.located(fmt.Errorf("chat: %w", err))
	}
	for _, s := range spans {
		assistant = append(assistant, Span{s[0], s[1]})
	}
	return text, assistant, nil
}
