// SPDX-License-Identifier: Apache-2.0

package export

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/chat"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/generation"
)

var update = flag.Bool("update", false, "rewrite testdata/modelfiles")

// templates are chat templates of the forms that there are.
var templates = map[string]string{
	// SmolLM2, Qwen 2.5: a system message of its own
	"chatml": `{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}` +
		`{{ '<|im_start|>system\nYou are a "helpful" {assistant}.<|im_end|>\n' }}{% endif %}` +
		`{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}` +
		`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`,
	// Gemma: the system message stands in the user's
	"folded": `{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}` +
		`{%- set prefix = messages[0]['content'] + '\n\n' -%}{%- set loop_messages = messages[1:] -%}{%- else -%}` +
		`{%- set prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}{%- for message in loop_messages -%}` +
		`{%- if message['role'] == 'assistant' -%}{%- set role = "model" -%}{%- else -%}` +
		`{%- set role = message['role'] -%}{%- endif -%}` +
		`{{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}{{ message['content'] | trim }}` +
		`{{ '<end_of_turn>\n' }}{%- endfor -%}` +
		`{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}`,
	// Llama 3
	"headers": `{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = ` +
		`'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + ` +
		`'<|eot_id|>' %}` +
		`{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}` +
		`{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}`,
	// Mistral's first: no system messages
	"instruct": `{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}` +
		`{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}` +
		`{{ message['content'] + eos_token}}{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}`,
}

// modelOf is a model with a chat template.
func modelOf(t *testing.T, source string) *Model {
	m, err := Open("../testdata/gguf/llama.gguf", Options{})
	require.NoError(t, err)
	made, err := chat.ParseTemplate(source)
	require.NoError(t, err)
	made.Special = map[string]string{"bos_token": "<bos>", "eos_token": "</s>"}
	m.chat = &chatTemplate{template: made, begin: "<bos>", options: generation.Options{Temperature: 0.7, TopK: 20,
		TopP: 0.8, RepetitionPenalty: 1.05, MaxNewTokens: 512}}
	return m
}

// A template is written in ollama's language, which renders the same conversations. The module in testdata/ollama gives
// these files to ollama's own parser.
func TestModelfiles(t *testing.T) {
	for name, source := range templates {
		text := modelOf(t, source).Modelfile("out/model.gguf")
		require.Contains(t, text, "TEMPLATE", name)
		path := filepath.Join("testdata", "modelfiles", name)
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), text, name)
	}
}

// What text around messages cannot say is not written, and neither is what would end the text in a Modelfile.
func TestTemplatesWithoutAModelfile(t *testing.T) {
	for source, want := range map[string]string{
		"{% for m in messages %}{{ loop.index }} {{ m.role }}: {{ m.content }}\n{% endfor %}": errForm.Error(),
		`{% for m in messages %}{{ m.role }}"""{{ m.content }}{% endfor %}`:                   `has """`,
		"{{ messages[0].content }}": errForm.Error(),
		"{% for m in messages %}{{ m.role }}:{{ m.content | upper }}\n{% endfor %}": errForm.Error(),
		"{{ raise_exception('never') }}":                                            "never",
	} {
		text := modelOf(t, source).Modelfile("model.gguf")
		require.NotContains(t, text, "\nTEMPLATE")
		_, comment, ok := strings.Cut(text, "# no TEMPLATE: ")
		require.True(t, ok)
		require.Contains(t, comment, want)
		require.Contains(t, text, "FROM ./model.gguf\n")
	}
	m := modelOf(t, templates["chatml"])
	m.chat = &chatTemplate{}
	require.NotContains(t, m.Modelfile("x.gguf"), "TEMPLATE")
	require.Contains(t, m.Modelfile("x.gguf"), "PARAMETER temperature 0\nPARAMETER repeat_penalty 1\n")
}

// A Modelfile is not replaced unless that is asked for.
func TestModelfileThatExists(t *testing.T) {
	m := modelOf(t, templates["chatml"])
	file := filepath.Join(t.TempDir(), "x.gguf")
	path, err := m.WriteModelfile(t.Context(), file, WriteOptions{})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(filepath.Dir(file), ModelfileName), path)
	_, err = m.WriteModelfile(t.Context(), file, WriteOptions{})
	require.ErrorContains(t, err, "exists: want another folder")
	_, err = m.WriteModelfile(t.Context(), file, WriteOptions{Overwrite: true})
	require.NoError(t, err)
}
