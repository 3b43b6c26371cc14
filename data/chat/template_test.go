// SPDX-License-Identifier: Apache-2.0

package chat_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/stretchr/testify/require"
)

// chatML is the template that most models have, with the answers marked.
const chatML = `{% for m in messages %}
{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}
{%- else %}{{ m.content + '<|im_end|>\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

func TestRender(t *testing.T) {
	template, err := chat.ParseTemplate(chatML)
	require.NoError(t, err)
	text, spans, err := template.Render(chat.Conversation{Messages: json.RawMessage(
		`[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "é!"}, {"role": "user", "content": "?"}]`),
		GenerationPrompt: true})
	require.NoError(t, err)
	require.Equal(t, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\né!<|im_end|>\n"+
		"<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n", text)
	require.Len(t, spans, 1)
	require.Equal(t, "é!<|im_end|>\n", text[spans[0].Start:spans[0].End])
	_, _, err = template.Render(chat.Conversation{Messages: json.RawMessage(`[{"role": 1, "content": "x"}]`)})
	require.ErrorContains(t, err, "line 2 of the template: str + int is not supported")
}

func TestLoadTemplate(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	_, err := chat.LoadTemplate(dir)
	require.ErrorIs(t, err, chat.ErrNoTemplate)
	rendered := func() string {
		template, err := chat.LoadTemplate(dir)
		require.NoError(t, err)
		text, _, err := template.Render(chat.Conversation{Messages: json.RawMessage(`[]`)})
		require.NoError(t, err)
		return text
	}
	write("tokenizer_config.json", `{"chat_template": "{{ bos_token }}{{ eos_token }}1", "bos_token": "<s>",
		"eos_token": {"content": "</s>", "special": true}, "unk_token": null}`)
	require.Equal(t, "<s></s>1", rendered())
	write("tokenizer_config.json", `{"chat_template": [{"name": "rag", "template": "r"},
		{"name": "default", "template": "2"}]}`)
	require.Equal(t, "2", rendered())
	write("chat_template.jinja", "3")
	require.Equal(t, "3", rendered())
	write("chat_template.jinja", "a\n{% if %}")
	_, err = chat.LoadTemplate(dir)
	require.ErrorContains(t, err, `line 2 of the template: unexpected "%}": want an expression (in `+dir)
	write("chat_template.jinja", "{{ messages[9999].content }}")
	template, err := chat.LoadTemplate(dir)
	require.NoError(t, err)
	_, _, err = template.Render(chat.Conversation{Messages: json.RawMessage(`[]`)})
	require.ErrorContains(t, err, "chat: line 1 of the template: element 9999 of a list of 0 is undefined, and has no "+
		"content (in "+filepath.Join(dir, "chat_template.jinja"))
	require.NoError(t, os.Remove(filepath.Join(dir, "chat_template.jinja")))
	write("tokenizer_config.json", `{"chat_template": "{% if %}"}`)
	_, err = chat.LoadTemplate(dir)
	require.ErrorContains(t, err, "(in chat_template of "+filepath.Join(dir, "tokenizer_config.json"))
	for config, want := range map[string]string{
		`{"chat_template": 3}`:     "chat_template is 3: want a text, or a list with one that is named default",
		`{"eos_token": {"id": 2}}`: `eos_token is {"id": 2}: want a token's text, or an object with its content`,
		`{"a": 1, "a": 2}`:         `has the key "a" twice`,
		`{"bos_token": "<s>"`:      "tokenizer_config.json: line 1, column 20: the text ends too early",
	} {
		write("tokenizer_config.json", config)
		_, err = chat.LoadTemplate(dir)
		require.ErrorContains(t, err, want)
	}
}
