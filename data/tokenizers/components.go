// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// component is a normalizer, pre-tokenizer, decoder or post-processor.
type component struct {
	Type string `json:"type"`

	part string          // of the file: "decoder"
	raw  json.RawMessage // all of it
}

// flat lists the components of a part of the file, those of Sequences in their place.
func flat(part string, raw json.RawMessage) ([]component, error) {
	list, err := flatten(nil, part, raw, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", part, err)
	}
	return list, nil
}

// sequenceKeys have the components of a Sequence, each in another part of the file.
var sequenceKeys = map[string]string{"normalizer": "normalizers", "pre_tokenizer": "pretokenizers",
	"decoder": "decoders", "post_processor": "processors"}

func flatten(list []component, part string, raw json.RawMessage, depth int) ([]component, error) {
	if isNull(raw) {
		return list, nil
	}
	c := component{part: part, raw: raw}
	if err := loose(raw, &c); err != nil {
		return nil, err
	}
	if c.Type != "Sequence" {
		if len(list) == maxProcessors {
			return nil, fmt.Errorf("want at most %d components", maxProcessors)
		}
		return append(list, c), nil
	}
	if depth >= maxSequences {
		return nil, fmt.Errorf("want at most %d nested Sequences", maxSequences)
	}
	var keys map[string]json.RawMessage
	if err := loose(raw, &keys); err != nil {
		return nil, err
	}
	var parts []json.RawMessage
	for key, value := range keys {
		switch key {
		case "type":
		case sequenceKeys[part]:
			if err := loose(value, &parts); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		default:
			return nil, fmt.Errorf("it has the key %q, which is unknown", key)
		}
	}
	for _, p := range parts {
		var err error
		if list, err = flatten(list, part, p, depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// fault names the component in an error.
func fault(c component, err error) string {
	if errors.Is(err, errUnknown) {
		return fmt.Sprintf("%s %q is not supported", c.part, c.Type)
	}
	return fmt.Sprintf("%s %s: %v", c.part, c.Type, err)
}

// fileByteLevel is the ByteLevel component, which occurs as pre-tokenizer, decoder and
// post-processor; missing keys have their default, true.
type fileByteLevel struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       bool   `json:"use_regex"`
}

func readByteLevel(raw json.RawMessage) (fileByteLevel, error) {
	b := fileByteLevel{AddPrefixSpace: true, TrimOffsets: true, UseRegex: true}
	err := strict(raw, &b)
	return b, err
}

// build makes a tokenizer of the file. Its error names all that is not supported, the greatest obstacle first.
func (f *file) build() (*Tokenizer, error) {
	var bad []string
	add := func(faults ...string) { bad = append(bad, faults...) }
	m, faults := f.readModel()
	add(faults...)
	t := &Tokenizer{}
	split, byteLevel, faults := parseSplitters(t, f.PreTokenizer)
	add(faults...)
	normalizers, faults := parseNormalizers(f.Normalizer)
	add(faults...)
	decode, faults := parseDecoder(f.Decoder)
	add(faults...)
	_, faults = parseProcessor(f.PostProcessor, math.MaxInt)
	add(faults...)
	add(f.checkRest()...)
	if len(bad) > 0 {
		return nil, joinFaults(bad)
	}
	t.normalize, t.split, t.decode = chain(normalizers), split, decode
	if err := m.fill(t, byteLevel); err != nil {
		return nil, err
	}
	if err := t.addTokens(f.added(), len(t.ids)); err != nil {
		return nil, err
	}
	t.process, faults = parseProcessor(f.PostProcessor, t.VocabSize())
	if len(faults) > 0 {
		return nil, joinFaults(faults)
	}
	t.cuttable = t.cuttable && f.cutsAnywhere()
	t.fallback = bytes.Contains(f.Decoder, []byte(`"ByteFallback"`))
	t.states.New = func() any { return newEncoder(t) }
	return t, nil
}

func joinFaults(bad []string) error {
	const most = 12
	if n := len(bad) - most; n > 0 {
		bad = append(bad[:most], fmt.Sprintf("and %d more", n))
	}
	return errors.New("tokenizers: tokenizer.json: " + strings.Join(bad, "; "))
}

func (f *file) checkRest() (bad []string) {
	for _, a := range f.AddedTokens {
		if a.ID < 0 || a.ID > maxID {
			bad = append(bad, fmt.Sprintf("added token %q has id %d: want 0 to %d", a.Content, a.ID, maxID))
		}
	}
	for _, part := range []struct {
		name string
		raw  json.RawMessage
	}{{"truncation", f.Truncation}, {"padding", f.Padding}} {
		if !isNull(part.raw) && part.raw[0] != '{' {
			bad = append(bad, fmt.Sprintf("%s is not an object", part.name))
		}
	}
	if f.Version != "1.0" {
		bad = append(bad, fmt.Sprintf("version is %q: want \"1.0\"", f.Version))
	}
	return bad
}

func parseNormalizers(raw json.RawMessage) (list []normalizer, bad []string) {
	components, err := flat("normalizer", raw)
	if err != nil {
		return nil, []string{err.Error()}
	}
	for _, c := range components {
		n, err := parseNormalizer(c)
		if err != nil {
			bad = append(bad, fault(c, err))
		}
		list = append(list, n)
	}
	return list, bad
}

// parseSplitters reads the pre-tokenizers. byteLevel says that the model reads bytes.
func parseSplitters(t *Tokenizer, raw json.RawMessage) (list []splitter, byteLevel bool, bad []string) {
	components, err := flat("pre_tokenizer", raw)
	if err != nil {
		return nil, false, []string{err.Error()}
	}
	t.cuttable = true
	for i, c := range components {
		var s splitter
		switch {
		case c.Type != "ByteLevel":
			s, err = parsePreTokenizer(c)
		case i < len(components)-1:
			err = errors.New("it is not the last component, which is not supported")
		default:
			var b fileByteLevel
			b, err = readByteLevel(c.raw)
			s, byteLevel = byteLevelSplit(b), true
			t.cuttable = t.cuttable && !b.AddPrefixSpace && (b.UseRegex || i > 0)
		}
		if err != nil {
			bad = append(bad, fault(c, err))
		}
		t.whereMatters = t.whereMatters || c.Type == "Metaspace"
		t.cuttable = t.cuttable && (c.Type == "ByteLevel" || c.hasScanner())
		list = append(list, s)
	}
	t.cuttable = t.cuttable && byteLevel
	return list, byteLevel, bad
}

// hasScanner reports whether no pre-token of a component has a space after a letter or a number.
func (c *component) hasScanner() bool {
	var s struct{ Pattern filePattern }
	if c.Type == "Digits" {
		return true
	}
	return c.Type == "Split" && json.Unmarshal(c.raw, &s) == nil && s.Pattern.Regex != nil &&
		scanners[*s.Pattern.Regex] != nil
}

// cutsAnywhere reports whether neither the normalizer nor an added token looks across a space.
func (f *file) cutsAnywhere() bool {
	list, _ := flat("normalizer", f.Normalizer)
	for _, c := range list {
		if !strings.HasPrefix(c.Type, "NF") {
			return false
		}
	}
	for _, a := range f.AddedTokens {
		if a.SingleWord || a.Normalized && (a.LStrip || a.RStrip || strings.Contains(a.Content, " ")) {
			return false
		}
	}
	return true
}
