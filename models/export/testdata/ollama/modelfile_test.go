// SPDX-License-Identifier: Apache-2.0

// Package ollama gives the Modelfiles of models/export to ollama's own parser and templates. It is a separate module,
// so that ollama is no dependency of Lockstep:
//
//	cd models/export/testdata/ollama && go test .
package ollama

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/parser"
	"github.com/ollama/ollama/template"
	"github.com/stretchr/testify/require"
)

const files = "../modelfiles"

// rendered is what a model is given of a conversation by each file.
var rendered = map[string]string{
	"chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo" +
		"<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
	"folded": "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHo<end_of_turn>\n" +
		"<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n",
	"headers": "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user" +
		"<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHo<|eot_id|>" +
		"<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
	"instruct": "[INST] Hi [/INST]Ho</s>[INST] Why? [/INST]",
}

// ollama reads each file, its parameters have the types that ollama knows, and its template renders a conversation.
func TestModelfiles(t *testing.T) {
	entries, err := os.ReadDir(files)
	require.NoError(t, err)
	require.Len(t, entries, len(rendered))
	for _, e := range entries {
		f, err := os.Open(filepath.Join(files, e.Name()))
		require.NoError(t, err)
		defer f.Close()
		parsed, err := parser.ParseFile(f)
		require.NoError(t, err, e.Name())
		all := map[string][]string{}
		for _, c := range parsed.Commands {
			all[c.Name] = append(all[c.Name], c.Args)
		}
		require.Equal(t, []string{"./model.gguf"}, all["model"])
		require.Equal(t, []string{"<|im_end|>"}, all["stop"])
		if e.Name() == "chatml" {
			require.Equal(t, []string{`You are a "helpful" {assistant}.`}, all["system"])
		}
		made, err := template.Parse(all["template"][0])
		require.NoError(t, err, e.Name())
		var text strings.Builder
		require.NoError(t, made.Execute(&text, template.Values{Messages: []api.Message{
			{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Hi"}, {Role: "assistant", Content: "Ho"},
			{Role: "user", Content: "Why?"}}}))
		require.Equal(t, rendered[e.Name()], text.String())
		for _, name := range []string{"model", "template", "system"} {
			delete(all, name)
		}
		parameters, err := api.FormatParams(all)
		require.NoError(t, err, e.Name())
		require.ElementsMatch(t, []string{"num_ctx", "stop", "temperature", "top_k", "top_p", "min_p", "repeat_penalty",
			"repeat_last_n", "num_predict"}, slices.Collect(maps.Keys(parameters)))
		sent, err := json.Marshal(parameters) // as they are sent
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(sent, &parameters))
		var options api.Options
		require.NoError(t, options.FromMap(parameters), e.Name())
		require.Equal(t, 256, options.NumCtx)
		require.Equal(t, float32(0.7), options.Temperature)
	}
}
