// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// withProcessor is trained/tokenizer.json with another post-processor.
func withProcessor(t *testing.T, processor json.RawMessage) (*Tokenizer, error) {
	t.Helper()
	text, err := os.ReadFile("testdata/trained/tokenizer.json")
	require.NoError(t, err)
	var tree map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &tree))
	tree["post_processor"] = processor
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	return Read(bytes.NewReader(text))
}

func again(t *testing.T, tok *Tokenizer) *Tokenizer {
	t.Helper()
	var b bytes.Buffer
	_, err := tok.WriteTo(&b)
	require.NoError(t, err)
	tok, err = Read(&b)
	require.NoError(t, err)
	return tok
}

// testdata/templates.py made the golden.
func TestTemplatesAreThoseOfHuggingFace(t *testing.T) {
	var golden struct {
		Text  string
		Cases []struct {
			Name      string
			Processor json.RawMessage `json:"post_processor"`
			IDs       []int32
		}
	}
	text, err := os.ReadFile("testdata/templates.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden.Cases, 7)
	for _, c := range golden.Cases {
		tok, err := withProcessor(t, c.Processor)
		require.NoError(t, err, c.Name)
		require.Equal(t, c.IDs, must(t, tok.EncodeWithSpecial)(golden.Text), c.Name)
		require.Equal(t, c.IDs, must(t, again(t, tok).EncodeWithSpecial)(golden.Text), "%s, written and read", c.Name)
		require.Equal(t, golden.Cases[0].IDs, must(t, tok.Encode)(golden.Text), c.Name)
		require.Equal(t, len(c.IDs)-len(golden.Cases[0].IDs), tok.NumSpecialTokens(), c.Name)
	}

	tok, err := Load("testdata/trained/tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, tok.BeginWith("<|endoftext|>"))
	require.Equal(t, golden.Cases[6].IDs, must(t, tok.EncodeWithSpecial)(golden.Text))
	require.Equal(t, golden.Cases[6].IDs, must(t, again(t, tok).EncodeWithSpecial)(golden.Text))
	require.ErrorContains(t, tok.BeginWith("<s>"), `no token "<s>"`)
}

func TestTemplatesThatAreRefused(t *testing.T) {
	for _, c := range [][2]string{
		{`{"type":"BertProcessing","sep":["x",99999],"cls":["y",0]}`, `post_processor BertProcessing`},
		{`{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"Mystery"}]}`,
			`post_processor "Mystery" is not supported`},
		{`{"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{}}`, "has 0 texts"},
		{`{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},` +
			`{"Sequence":{"id":"B","type_id":0}}],"pair":[],"special_tokens":{}}`, "has 2 texts"},
		{`{"type":"TemplateProcessing","single":[{}],"pair":[],"special_tokens":{}}`, "neither"},
		{`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},` +
			`{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}}`, "not in special_tokens"},
		{`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},` +
			`{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>",` +
			`"ids":[99999],"tokens":["<s>"]}}}`, "id 99999"},
		{`{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}],"pair":[],` +
			`"special_tokens":{},"more":1}`, "more"},
	} {
		_, err := withProcessor(t, json.RawMessage(c[0]))
		require.ErrorContains(t, err, c[1])
	}
}
