// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
)

// conversation reads a list of messages with role and content, or with from and value. The result has role and content,
// and the roles of templates.
func conversation(key string, v json.RawMessage) (json.RawMessage, error) {
	var list []json.RawMessage
	if err := jsonfile.Unmarshal(v, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s is empty: want at least one message", key)
	}
	changed := false
	for i, text := range list {
		t := turn{}
		var err error
		if t.fields, err = jsontext.Fields(text); err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", key, i, err)
		}
		if err := t.read(); err != nil {
			return nil, fmt.Errorf("%s[%d]%w", key, i, err)
		}
		if t.changed {
			changed, list[i] = true, t.encode()
		}
	}
	if !changed {
		return v, nil
	}
	return encode(list)
}

// turn is a message of a conversation.
type turn struct {
	fields  []jsontext.Field
	changed bool // it is no longer what was read
}

// roles are those of ShareGPT's data sets, as templates have them.
var roles = map[string]string{"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
	"chatgpt": "assistant", "model": "assistant", "bing": "assistant", "bard": "assistant", "system": "system",
	"tool": "tool", "observation": "tool"}

// read checks the message and gives it the names of templates. Errors continue what names the message.
func (t *turn) read() error {
	role, err := t.role()
	if err != nil {
		return err
	}
	content, err := t.field("content", "value")
	if err != nil {
		return err
	}
	calls, err := t.field("tool_calls", "")
	if err != nil {
		return err
	}
	if content == nil && calls == nil {
		return errors.New(" has no content")
	}
	if content != nil && content.Value[0] == '[' {
		for _, kind := range []string{"image", "video", "audio"} {
			if bytes.Contains(content.Value, []byte(`"`+kind)) {
				return fmt.Errorf(" has content of type %s: want text, models of others are not built in", kind)
			}
		}
	}
	weight, err := t.field("weight", "")
	if err == nil && weight != nil && role == "assistant" && string(weight.Value) == "0" {
		return errors.New(" is an answer of weight 0: want all of weight 1, or prompt and completion; some answers " +
			"alone cannot be learned yet")
	}
	return err
}

// role is the message's, by its name in templates.
func (t *turn) role() (string, error) {
	f, err := t.field("role", "from")
	switch {
	case err != nil:
		return "", err
	case f == nil:
		return "", errors.New(" has no role: want user, assistant, system or tool")
	case f.Value[0] != '"':
		return "", fmt.Errorf(".role is %.40s: want a text", f.Value)
	}
	text, err := f.Text()
	if err != nil {
		return "", fmt.Errorf(": %w", err)
	}
	name, ok := roles[text]
	switch {
	case ok && name != text:
		f.Value, t.changed = json.RawMessage(`"`+name+`"`), true
	case !ok && t.changed: // ShareGPT has these alone
		return "", fmt.Errorf(".from is %.40q: want human, gpt, system or tool", text)
	}
	return name, nil
}

// field is the field of a name, or that of its other name, which it renames. nil: it is missing, or null.
func (t *turn) field(name, other string) (found *jsontext.Field, err error) {
	for i := range t.fields {
		f := &t.fields[i]
		if f.Key != name && (other == "" || f.Key != other) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf(" has %s and %s: want one", found.Key, f.Key)
		}
		found = f
	}
	if found == nil || string(found.Value) == "null" {
		return nil, nil
	}
	if found.Key != name {
		found.Key, t.changed = name, true
	}
	return found, nil
}

// encode is the message as JSON.
func (t *turn) encode() json.RawMessage {
	var b bytes.Buffer
	for i, f := range t.fields {
		b.WriteString([]string{"{", ","}[min(i, 1)])
		key, err := json.Marshal(f.Key)
		if err != nil {
			panic(err) // a string has JSON
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(f.Value)
	}
	b.WriteByte('}')
	return b.Bytes()
}
