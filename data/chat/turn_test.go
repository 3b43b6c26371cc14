// SPDX-License-Identifier: Apache-2.0

package chat_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

// The token behind an answer ends it, whatever the configuration says; a text there does not.
func TestTurnEnds(t *testing.T) {
	tok, err := tokenizers.Train(t.Context(), func(yield func(string, error) bool) { yield("some text", nil) },
		tokenizers.TrainOptions{VocabSize: 262, SpecialTokens: []string{"<s>", "</s>", "<|end|>"}})
	require.NoError(t, err)
	const parts = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}" +
		"{% endfor %}<|end|>{% endfor %}"
	for source, want := range map[string][]int32{
		parts: {2},
		"{% for m in messages %}<s>{{ m.role }} {{ m.content }}<|end|>\n{% endfor %}": {2},
		"{% for m in messages %}<s>{{ m.content }} </s>{% endfor %}":                  {1},
		"{% for m in messages %}{{ m.content }}<|end|>{% endfor %}</s>":               {2},
		"{% for m in messages %}{{ m.content }}\n\nUser:{% endfor %}</s>":             nil,
		"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}":          nil,
	} {
		template, err := chat.ParseTemplate(source)
		require.NoError(t, err)
		ends, err := template.TurnEnds(tok)
		require.NoError(t, err)
		require.Equal(t, want, ends, source)
	}
	for source, want := range map[string]string{
		"{{ raise_exception('no') }}": "no",
		"<s>Hello<|end|>": `the template leaves out what messages say: it makes "<s>Hello<|end|>" of a ` +
			"question",
		"{% for m in messages if m.role == 'user' %}{{ m.content }}<|end|>{% endfor %}": "leaves out what messages say",
		"{{ messages[-1].content }}<|end|>":                                             "leaves out what messages say",
		"{% for m in messages %}{{ m.value }}<|end|>{% endfor %}":                       "leaves out what messages say",
	} {
		template, err := chat.ParseTemplate(source)
		require.NoError(t, err)
		_, err = template.TurnEnds(tok)
		require.ErrorContains(t, err, want, source)
	}
}

// A template that reads contents in parts makes nothing of texts, and no rows of them.
func TestEncodeRefusesWhatTheTemplateLeavesOut(t *testing.T) {
	e := encoder(t)
	var err error
	e.Template, err = chat.ParseTemplate("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}" +
		"<|im_end|>{% endfor %}")
	require.NoError(t, err)
	encode := func(content string) error {
		row, err := chat.ParseRow([]byte(`{"messages": [{"role": "user", "content": ` + content + `}]}`))
		require.NoError(t, err)
		_, err = e.Encode(row)
		return err
	}
	require.NoError(t, encode(`[{"type": "text", "text": "Hi"}]`))
	require.NoError(t, encode(`""`))
	require.ErrorContains(t, encode(`"Hi there"`),
		`the template leaves out what the messages say: it makes "<|im_end|>" of them: want contents as the template`)
}
