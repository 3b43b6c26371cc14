// SPDX-License-Identifier: Apache-2.0

package args

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/v2"
)

// document parses one config file for koanf. Faults that leave the file readable
// are collected, so that they are reported beside the others.
type document struct {
	koanf.Parser
	duplicates []string
}

var errFormat = errors.New("want a name that ends in .json, .yaml or .yml")

// isConfigFile reports whether a name is that of a config file.
func isConfigFile(name string) bool {
	_, err := newDocument(name)
	return err == nil && !strings.HasPrefix(name, "-")
}

// newDocument chooses the parser by the file's name.
func newDocument(path string) (*document, error) {
	d := &document{}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json":
		d.Parser = jsonParser{doc: d}
	case ".yaml", ".yml":
		d.Parser = yamlParser{yaml.Parser()}
	default:
		return nil, errFormat
	}
	return d, nil
}

// jsonParser keeps numbers as written: a float64 would lose digits of a seed.
type jsonParser struct{ doc *document }

func (p jsonParser) Unmarshal(data []byte) (map[string]any, error) {
	m, duplicates, err := parseJSON(data)
	p.doc.duplicates = duplicates
	return m, err
}

func (jsonParser) Marshal(m map[string]any) ([]byte, error) { return json.Marshal(m) }

// yamlParser refuses what the parser below would silently leave out: a second
// document. Duplicate keys are that parser's own error.
type yamlParser struct{ *yaml.YAML }

func (p yamlParser) Unmarshal(data []byte) (map[string]any, error) {
	if severalDocuments(data) {
		return nil, errors.New("want one YAML document, without --- or ... after the first setting")
	}
	m, err := p.YAML.Unmarshal(data)
	if m == nil && err == nil {
		m = map[string]any{}
	}
	return m, err
}

// severalDocuments reports whether a document marker follows content. Markers
// stand at the start of a line, where no content of a mapping can look alike.
func severalDocuments(data []byte) bool {
	content, ended := false, false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, " \t\r\n")
		marker := line == "---" || strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "---\t")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case marker && content:
			return true
		case marker, !content && strings.HasPrefix(line, "%"):
		case line == "...":
			ended = true
		case ended:
			return true
		default:
			content = true
		}
	}
	return false
}

// maxDepth bounds nesting; settings need 2.
const maxDepth = 32

// parseJSON reads one JSON object with its numbers as json.Number. A key that
// occurs twice in one object is listed, and its first value kept.
func parseJSON(data []byte) (m map[string]any, duplicates []string, err error) {
	r := jsonReader{dec: json.NewDecoder(bytes.NewReader(data))}
	r.dec.UseNumber()
	v, err := r.value(0)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil, errors.New("the JSON text ends too early: want all its brackets and quotes closed")
	}
	if err != nil {
		return nil, nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, nil, errors.New("want a JSON object")
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("want nothing after the JSON object")
	}
	return m, r.duplicates, nil
}

type jsonReader struct {
	dec        *json.Decoder
	duplicates []string
}

func (r *jsonReader) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("want at most %d levels of nesting", maxDepth)
	}
	tok, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		return r.object(depth)
	case json.Delim('['):
		return r.array(depth)
	}
	return tok, nil
}

func (r *jsonReader) object(depth int) (any, error) {
	m := map[string]any{}
	for r.dec.More() {
		tok, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		key, ok := tok.(string)
		if !ok {
			return nil, fmt.Errorf("want a JSON key, not %v", tok)
		}
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		if _, twice := m[key]; twice {
			r.duplicates = append(r.duplicates, key)
			continue
		}
		m[key] = v
	}
	_, err := r.dec.Token()
	return m, err
}

func (r *jsonReader) array(depth int) (any, error) {
	list := []any{}
	for r.dec.More() {
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := r.dec.Token()
	return list, err
}

// jsonText is compact JSON, or Go's own form of what JSON cannot hold.
func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
