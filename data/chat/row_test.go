// SPDX-License-Identifier: Apache-2.0

package chat_test

import (
	"context"
	"testing"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/stretchr/testify/require"
)

func TestParseRow(t *testing.T) {
	row := func(text string) chat.Row {
		r, err := chat.ParseRow([]byte(text))
		require.NoError(t, err, text)
		return r
	}
	require.Equal(t, chat.Row{Form: chat.Text, Text: "a", Unread: []string{"id"}}, row(`{"id": 3, "text": "a"}`))
	require.Equal(t, chat.Row{Form: chat.PromptCompletion, Prompt: "a", Completion: "b"},
		row(`{"prompt": "a", "completion": "b"}`))
	r := row(`{"messages": [{"role": "user", "content": "a"}], "tools": "[{\"name\": \"f\"}]",
		"chat_template_kwargs": {"enable_thinking": false}}`)
	require.JSONEq(t, `[{"role": "user", "content": "a"}]`, string(r.Messages))
	require.JSONEq(t, `[{"name": "f"}]`, string(r.Tools))
	require.Equal(t, "false", string(r.Variables["enable_thinking"]))
	r = row(`{"conversations": [{"from": "human", "value": "<a>"}, {"from": "gpt", "value": "b"}], "system": "s"}`)
	require.Equal(t, chat.ShareGPT, r.Form)
	require.Equal(t, `[{"role":"system","content":"s"},{"role":"user","content":"<a>"},`+
		`{"role":"assistant","content":"b"}]`, string(r.Messages))
	r = row(`{"instruction": "Add.", "input": "1+1", "output": "2"}`)
	require.Equal(t, `[{"role":"user","content":"Add.\n1+1"}]`, string(r.PromptMessages))
	require.Equal(t, `[{"role":"assistant","content":"2"}]`, string(r.CompletionMessages))

	// tatsu-lab/alpaca repeats the other columns in text; a missing input may be null or empty.
	r = row(`{"instruction": "Add.", "input": "", "output": "2", "text": "Below is … Add. …", "system": null}`)
	require.Equal(t, chat.Alpaca, r.Form)
	require.Equal(t, `[{"role":"user","content":"Add."}]`, string(r.PromptMessages))
	require.Equal(t, []string{"text"}, r.Unread)
	require.Empty(t, r.Text)
	r = row(`{"instruction": "Add.", "context": "1+1", "response": "2", "category": "qa"}`)
	require.Equal(t, chat.Dolly, r.Form)
	require.Equal(t, `[{"role":"user","content":"Add.\n1+1"}]`, string(r.PromptMessages))
	require.Equal(t, `[{"role":"assistant","content":"2"}]`, string(r.CompletionMessages))
	require.Equal(t, []string{"category"}, r.Unread)

	for text, want := range map[string]string{
		`{"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "id": 1}`: `[` +
			`{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]`,
		`{"conversation": [{"role": "human", "content": "a"}]}`: `[{"role":"user","content":"a"}]`,
		`{"messages": [{"from": "human", "value": "a", "weight": 0}, {"from": "gpt", "value": "b", "n": [1]}]}`: `[` +
			`{"role":"user","content":"a","weight":0},{"role":"assistant","content":"b","n":[1]}]`,
		`{"messages": [{"role": "user", "content": "a"}], "system": "s", "text": "t", "conversations": null}`: `[` +
			`{"role":"system","content":"s"},{"role": "user", "content": "a"}]`,
		`{"messages": [{"role": "system", "content": "s"}], "system": "s"}`: `[{"role": "system", "content": "s"}]`,
		`{"messages": [{"role": "assistant", "content": null, "tool_calls": [1]}], "system": "", "tools": ""}`: `[` +
			`{"role": "assistant", "content": null, "tool_calls": [1]}]`,
	} {
		require.Equal(t, want, string(row(text).Messages))
	}

	for _, c := range [][2]string{
		{`[]`, "want a JSON object"},
		{`{"messages": null, "id": 1}`, `the row has the keys ["id"], and null under ["messages"]: want messages, prompt`},
		{`{"chat": "x"}`, `the row has the keys ["chat"]: want messages, prompt and completion, text, `},
		{`{"messages": [], "prompt": "a", "completion": "b"}`, `the row has several forms, ["messages" ` +
			`"prompt+completion"]: want one, so remove the keys of the others`},
		{`{"chosen": "a", "rejected": "b"}`, "for training on preferences"},
		{`{"messages": [{"role": "system", "content": "s"}], "system": "t"}`, "another in the conversation: want one"},
		{`{"messages": [{"role": "assistant", "content": "s", "weight": 0}]}`, "messages[0] is an answer of weight 0"},
		{`{"messages": [{"role": "user", "from": "gpt", "content": "x"}]}`, "messages[0] has role and from: want one"},
		{`{"messages": [{"role": "user", "content": null}]}`, "messages[0] has no content"},
		{`{"text": "a", "text": "b"}`, `the row has the key "text" twice`},
		{`{"text": 3}`, `field "text" is 3: want a string`},
		{`{"messages": []}`, "messages is empty"},
		{`{"messages": "x"}`, `messages: it is "x": want a list`},
		{`{"messages": [{"content": "x"}]}`, "messages[0] has no role: want user, assistant, system or tool"},
		{`{"messages": [{"role": "user"}]}`, "messages[0] has no content"},
		{`{"messages": [{"role": 3, "content": "x"}]}`, "messages[0].role is 3: want a text"},
		{`{"messages": [{"role": "user", "content": [{"type": "image"}]}]}`, "messages[0] has content of type image"},
		{`{"prompt": "a", "completion": []}`, `field "completion" is []: want a string`},
		{`{"conversations": [{"from": "x", "value": "a"}]}`, `conversations[0].from is "x": want human, gpt, system`},
		{`{"conversations": [{"from": "gpt"}]}`, "conversations[0] has no content"},
		{`{"instruction": "a", "output": "b", "history": [[1]]}`, "history is not supported"},
	} {
		_, err := chat.ParseRow([]byte(c[0]))
		require.ErrorContains(t, err, c[1], c[0])
	}
}

// encoder is one of a small tokenizer.
func encoder(t *testing.T) chat.Encoder {
	tok, err := tokenizers.Train(context.Background(), func(yield func(string, error) bool) {
		yield("user assistant system", nil)
	}, tokenizers.TrainOptions{VocabSize: 262, SpecialTokens: []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}})
	require.NoError(t, err)
	template, err := chat.ParseTemplate(chatML)
	require.NoError(t, err)
	return chat.Encoder{Tokenizer: tok, Template: template, EOS: "<|im_end|>", Ends: []int32{2}}
}

func TestEncode(t *testing.T) {
	e := encoder(t)
	marked := func(text string) string {
		row, err := chat.ParseRow([]byte(text))
		require.NoError(t, err)
		s, err := e.Encode(row)
		require.NoError(t, err, text)
		out, err := e.Marked(s)
		require.NoError(t, err)
		return out
	}
	const turns = `{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "é"},
		{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}`
	require.Equal(t, "⟦<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\né<|im_end|>\n"+
		"<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n!<|im_end|>\n⟧", marked(turns))
	e.AssistantOnly = true
	require.Equal(t, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦é<|im_end|>\n⟧"+
		"<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n⟦!<|im_end|>\n⟧", marked(turns))
	e.AssistantOnly = false
	require.Equal(t, "⟦a<|im_end|>⟧", marked(`{"text": "a"}`))
	require.Equal(t, "⟦a<|im_end|>⟧", marked(`{"text": "a<|im_end|>"}`))
	require.Equal(t, "a⟦b<|im_end|>⟧", marked(`{"prompt": "a", "completion": "b"}`))
	require.Equal(t, "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n⟦c<|im_end|>\n⟧",
		marked(`{"instruction": "a", "input": "b", "output": "c"}`))
	e.AllTokens = true
	require.Equal(t, "⟦ab<|im_end|>⟧", marked(`{"prompt": "a", "completion": "b"}`))
	e.MaxLength = 2
	require.Equal(t, "⟦ab⟧", marked(`{"prompt": "a", "completion": "b"}`))
}

// A conversation without an answer has nothing to learn, whatever the template marks.
func TestEncodeNamesARowWithoutAnswers(t *testing.T) {
	e := encoder(t)
	e.AssistantOnly = true
	row, err := chat.ParseRow([]byte(`{"messages": [{"role": "user", "content": "Hi"}]}`))
	require.NoError(t, err)
	_, err = e.Encode(row)
	require.ErrorContains(t, err, "it has no message of the assistant")
}

// A model that is trained on answers without their end does not stop: trl's issues 1623, 3091 and 7230.
func TestEncodeRefusesAnswersWithoutAnEnd(t *testing.T) {
	const row = `{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}`
	const outside = `{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}` +
		`{% endgeneration %}<|im_end|>{% else %}{{ m.content }}{% endif %}{% endfor %}`
	for template, want := range map[string]string{
		outside: `the answer "Yes" does not end on a token at which the model stops (<|im_end|>), so it would not ` +
			"learn to: move the end of {% generation %} behind it in the chat template",
		"{% for m in messages %}{{ m.content }}{% endfor %}": "the chat template marks no answers; " +
			"assistant_only_loss needs {% generation %} around them",
		"{% generation %}{% endgeneration %}{{ messages[0].content }}": "does not end on a token",
	} {
		e := encoder(t)
		var err error
		e.AssistantOnly = true
		e.Template, err = chat.ParseTemplate(template)
		require.NoError(t, err)
		r, err := chat.ParseRow([]byte(row))
		require.NoError(t, err)
		_, err = e.Encode(r)
		require.ErrorContains(t, err, want)
	}
	e := encoder(t)
	bare, err := chat.ParseTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
	require.NoError(t, err)
	conversation, err := chat.ParseRow([]byte(row))
	require.NoError(t, err)
	e.Template = bare
	_, err = e.Encode(conversation)
	require.ErrorContains(t, err, "the conversation ends with an answer that does not end on a token at which the "+
		"model stops (<|im_end|>), so it would not learn to: want a chat template that ends answers with such a token")
	e.Template = nil
	r, err := chat.ParseRow([]byte(row))
	require.NoError(t, err)
	_, err = e.Encode(r)
	require.ErrorIs(t, err, chat.ErrNoTemplate)
	require.ErrorContains(t, err, "--chat_template")
	e.EOS = ""
	_, err = e.Encode(chat.Row{Form: chat.PromptCompletion, Prompt: "a", Completion: "b"})
	require.ErrorContains(t, err, "the completion does not end on a token at which the model stops")
	e.AssistantOnly = true
	_, err = e.Encode(chat.Row{Form: chat.Text, Text: "b"})
	require.ErrorContains(t, err, "a row with text: assistant_only_loss needs conversations in messages")
}

func TestCollate(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	// A padding token that also ends texts is learned where it ends one: trl's issue 3091.
	eos, err := chat.Collate(2)(c, []chat.Sample{{IDs: []int32{5, 2}, Learned: []bool{true, true}},
		{IDs: []int32{5, 6, 2}, Learned: []bool{true, true, true}}})
	require.NoError(t, err)
	require.Equal(t, []int64{5, 2, 2, 5, 6, 2}, tensor.ToSlice[int64](c, eos.Tensors[data.InputIDs]))
	require.Equal(t, []int64{2, -100, -100, 6, 2, -100}, tensor.ToSlice[int64](c, eos.Tensors[data.ShiftLabels]))
	b, err := chat.Collate(9)(c, []chat.Sample{
		{IDs: []int32{1, 2, 3}, Learned: []bool{true, false, true}}, {IDs: []int32{4, 5}, Learned: []bool{true, true}}})
	require.NoError(t, err)
	require.EqualValues(t, 2, b.Count)
	require.Equal(t, []int64{1, 2, 3, 4, 5, 9}, tensor.ToSlice[int64](c, b.Tensors[data.InputIDs]))
	require.Equal(t, []int64{-100, 3, -100, 5, -100, -100}, tensor.ToSlice[int64](c, b.Tensors[data.ShiftLabels]))
	require.Equal(t, []int64{1, 1, 1, 1, 1, 0}, tensor.ToSlice[int64](c, b.Tensors[data.AttentionMask]))
}
