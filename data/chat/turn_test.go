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
	for source, want := range map[string][]int32{
		"{% for m in messages %}<s>{{ m.role }} {{ m.content }}<|end|>\n{% endfor %}":   {2},
		"{% for m in messages %}<s>{{ m.content }} </s>{% endfor %}":                    {1},
		"{% for m in messages %}{{ m.content }}<|end|>{% endfor %}</s>":                 {2},
		"{% for m in messages %}{{ m.content }}\n\nUser:{% endfor %}</s>":               nil,
		"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}":            nil,
		"{% for m in messages if m.role == 'user' %}{{ m.content }}<|end|>{% endfor %}": nil,
	} {
		template, err := chat.ParseTemplate(source)
		require.NoError(t, err)
		ends, err := template.TurnEnds(tok)
		require.NoError(t, err)
		require.Equal(t, want, ends, source)
	}
	template, err := chat.ParseTemplate("{{ raise_exception('no') }}")
	require.NoError(t, err)
	_, err = template.TurnEnds(tok)
	require.ErrorContains(t, err, "no")
}
