// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"

	"github.com/lockstep-ml/lockstep/internal/modelfiles"
)

// KeptConfig keeps the config.json that a model was loaded from, so that keys which the model does not read are saved
// again. Models embed it. It is for packages of architectures.
type KeptConfig struct {
	Original string // the text; "" of a model that was not loaded
}

// KeepConfig keeps the text of a config.json.
func (c *KeptConfig) KeepConfig(original string) { c.Original = original }

// OriginalConfig returns it, "" if there is none.
func (c *KeptConfig) OriginalConfig() string { return c.Original }

// configKeeper is implemented by models that embed KeptConfig.
type configKeeper interface {
	KeepConfig(original string)
	OriginalConfig() string
}

// SidecarNames are the files beside a model's weights that belong to a saved model and that training does not
// change: those of the tokenizer, of generation and of preprocessing, by the names that transformers gives them.
var SidecarNames = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
	"merges.txt", "vocab.txt",
	"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json",
	"generation_config.json", "preprocessor_config.json", "processor_config.json",
}

// maxSidecar bounds the size of such a file, in bytes.
const maxSidecar = 128 << 20

// Sidecar is a file beside a model's weights.
type Sidecar struct {
	Name string
	Data []byte
}

// Sidecars reads the files of SidecarNames that a saved model's folder has, in that order. A program that fine-tunes
// the model gives them to trainer.WithParts, so that its checkpoints hold them unchanged.
func Sidecars(dir string) ([]Sidecar, error) {
	var list []Sidecar
	for _, name := range SidecarNames {
		data, err := modelfiles.ReadFile(filepath.Join(dir, name), maxSidecar)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("models: %w", err)
		}
		list = append(list, Sidecar{name, data})
	}
	return list, nil
}

// object is a JSON object whose keys keep their order.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

func parseObject(text []byte) (object, error) {
	o := object{values: map[string]json.RawMessage{}}
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return o, fmt.Errorf("%.20q: want a JSON object", text)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return o, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return o, err
		}
		o.set(key.(string), value) // the keys of an object are strings
	}
	return o, nil
}

// set replaces the value of a key, or appends the key.
func (o *object) set(key string, value json.RawMessage) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

func (o *object) text() ([]byte, error) {
	var b, out bytes.Buffer
	b.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(o.values[key])
	}
	b.WriteByte('}')
	if err := json.Indent(&out, b.Bytes(), "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// WithKey is a JSON object, such as a generation_config.json, with another value of a key. The other keys keep their
// places and values. An empty text means an empty object.
func WithKey(text []byte, key string, value any) ([]byte, error) {
	if len(text) == 0 {
		text = []byte("{}")
	}
	o, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	var written bytes.Buffer
	e := json.NewEncoder(&written)
	e.SetEscapeHTML(false) // tokens are written as <s>
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	o.set(key, written.Bytes())
	return o.text()
}

// mergeConfig is the original config.json with what the model says of itself: keys keep their place, values that
// mean the same stay as they are written, and what the model does not know stays.
func mergeConfig(original, own []byte) ([]byte, error) {
	merged, err := parseObject(original)
	if err != nil {
		return nil, err
	}
	ours, err := parseObject(own)
	if err != nil {
		return nil, err
	}
	for _, key := range ours.keys {
		value := ours.values[key]
		if _, newer := merged.values["dtype"]; newer && key == "torch_dtype" {
			key = "dtype" // its name since transformers 4.56
		}
		if old, ok := merged.values[key]; !ok || !sameJSON(old, value) {
			merged.set(key, value)
		}
	}
	return merged.text()
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
