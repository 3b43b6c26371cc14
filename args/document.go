// SPDX-License-Identifier: Apache-2.0

package args

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/v2"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
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

// parseJSON reads one JSON object with its numbers as json.Number. Keys that occur twice in one object are listed.
func parseJSON(data []byte) (m map[string]any, duplicates []string, err error) {
	err = jsonfile.Options{Numbers: true, Duplicates: &duplicates}.Unmarshal(data, &m)
	if err == nil && m == nil {
		err = errors.New("it is null: want an object")
	}
	return m, duplicates, err
}

// jsonText is compact JSON, or Go's own form of what JSON cannot hold.
func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
