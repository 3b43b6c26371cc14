// SPDX-License-Identifier: Apache-2.0

package chat_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The forms in which data sets have preferences, and what they are read as: prompt | chosen | rejected.
func TestParsePair(t *testing.T) {
	const user, good, bad = `{"role":"user","content":"q"}`, `{"role":"assistant","content":"a"}`,
		`{"role":"assistant","content":"b"}`
	conversation := "[" + user + "] | [" + good + "] | [" + bad + "]"
	const lists = `{"chosen": [` + user + `,` + good + `], "rejected": [` + user + `,`
	for text, want := range map[string]string{
		`{"prompt": "q", "chosen": "a", "rejected": "b"}`:                                 "q | a | b",
		`{"chosen": "q: é a", "rejected": "q: è a", "prompt": null}`:                      "q: |  é a |  è a",
		`{"chosen": "q. A", "rejected": "q. A and B"}`:                                    "q.  | A | A and B",
		`{"chosen": "same", "rejected": "same"}`:                                          "sam | e | e",
		`{"chosen": "", "rejected": "b"}`:                                                 " |  | b",
		`{"prompt": [` + user + `], "chosen": "a", "rejected": "b"}`:                      conversation,
		`{"instruction": "q", "chosen": "a", "rejected": "b"}`:                            conversation,
		`{"prompt": "q", "chosen": [` + good + `], "rejected": ` + bad + `}`:              conversation,
		`{"prompt": [` + user + `], "chosen": [` + good + `], "rejected": [` + bad + `]}`: conversation,
		`{"messages": [` + user + `], "chosen": ` + good + `, "rejected": ` + bad + `}`:   conversation,
		lists + bad + `]}`:                conversation,
		lists + bad + `], "prompt": "q"}`: conversation,
		lists + good + `]}`:               "[" + user + "] | [" + good + "] | [" + good + "]",
		`{"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "a"},
			"rejected": {"from": "gpt", "value": "b"}}`: conversation,
		`{"instruction": "q", "input": "r", "chosen": "a", "rejected": "b", "system": "s"}`: `[{"role":"system",` +
			`"content":"s"},{"role":"user","content":"q\nr"}] | [` + good + `] | [` + bad + `]`,
	} {
		p, err := chat.ParsePair([]byte(text))
		require.NoError(t, err, text)
		got := []string{p.Prompt, p.Chosen, p.Rejected}
		if p.PromptMessages != nil {
			require.Empty(t, p.Prompt+p.Chosen+p.Rejected, text)
			got = []string{string(p.PromptMessages), string(p.ChosenMessages), string(p.RejectedMessages)}
		}
		require.Equal(t, want, strings.Join(got, " | "), text)
	}
	p, err := chat.ParsePair([]byte(`{"prompt": "q", "chosen": "a", "rejected": "b", "margin": 0.5, "score": 1,
		"tools": [{"name": "f"}], "chat_template_kwargs": {"x": 1}}`))
	require.NoError(t, err)
	require.Equal(t, 0.5, p.Margin)
	require.Equal(t, []string{"score"}, p.Unread)
	require.JSONEq(t, `[{"name": "f"}]`, string(p.Tools))
	require.Equal(t, "1", string(p.Variables["x"]))

	p, err = chat.ParsePair([]byte(`{"prompt": "q", "messages": [], "chosen": "a", "rejected": "b", "id": 1}`))
	require.NoError(t, err) // as data sets have it that were made for two purposes
	require.Equal(t, []string{"id", "messages"}, p.Unread)
	require.Equal(t, "q", p.Prompt)

	for text, want := range map[string]string{
		`{"prompt": "q", "chosen": "a"}`:                                       "want chosen and rejected, two texts",
		`{"instruction": "q", "messages": [], "chosen": "a", "rejected": "b"}`: "several prompts",
		`{"chosen": "a", "rejected": [` + bad + `]}`:                           `"rejected" is [{"role"`,
		`{"chosen": [], "rejected": [` + bad + `]}`:                            "chosen is empty",
		`{"chosen": [` + good + `], "rejected": [` + bad + `]}`:                "begin with different messages",
		`{"chosen": "a", "rejected": "b", "margin": "much"}`:                   "margin",
		`{"prompt": 3, "chosen": "a", "rejected": "b"}`:                        "prompt",
		`{"prompt": [{"role": "user"}], "chosen": "a", "rejected": "b"}`:       "prompt[0] has no content",
		`{"chosen": "a", "chosen": "a", "rejected": "b"}`:                      "twice",
		`{"prompt": [` + user + `], "chosen": [{"role": 1}], "rejected": "b"}`: `"chosen" is [{`,
	} {
		_, err := chat.ParsePair([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

func TestReadPairs(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	texts := file("a.jsonl", `{"prompt": "q", "chosen": "a", "rejected": "b"}`+"\n")
	list, err := chat.ReadPairs(texts, texts)
	require.NoError(t, err)
	require.Len(t, list, 2)
	mixed := file("b.json", `[{"instruction": "q", "chosen": "a", "rejected": "b"}]`)
	_, err = chat.ReadPairs(texts, mixed)
	require.ErrorContains(t, err, "b.json: line 1: chosen and rejected are answers in conversations")
	_, err = chat.ReadPairs(file("c.jsonl", "{\"chosen\": 1}\n"))
	require.ErrorContains(t, err, "c.jsonl: line 1")
	list, err = chat.ReadPairs(file("d.csv", "prompt,chosen,rejected,margin\nq,a,b,0.5\n"))
	require.NoError(t, err)
	require.Equal(t, 0.5, list[0].Margin)
	_, err = chat.ReadPairs(file("e.jsonl", "\n"))
	require.Error(t, err)
}

// pairEncoder ends answers by a special token.
func pairEncoder(t *testing.T, length int) chat.Encoder {
	tok, err := tokenizers.Load("../../examples/finetune/testdata/model/tokenizer.json")
	require.NoError(t, err)
	return chat.Encoder{Tokenizer: tok, EOS: "<|im_end|>", MaxLength: length}
}

// Rows of which nothing can be learned say why.
func TestEncodePair(t *testing.T) {
	encode := func(length int, mode chat.TruncationMode, chosen, rejected string) (chat.PreferenceSample, error) {
		e := pairEncoder(t, length)
		return e.EncodePair(chat.Pair{Prompt: "xyz", Chosen: chosen, Rejected: rejected}, mode)
	}
	whole, err := encode(0, chat.KeepStart, " abc", " abd!")
	require.NoError(t, err)
	require.Equal(t, len(whole.Rejected), whole.Length)
	require.Equal(t, 3, whole.ChosenStart)
	n := len(whole.Chosen)
	for _, c := range []struct {
		length           int
		mode             chat.TruncationMode
		chosen, rejected string
		want             error
	}{
		{0, chat.KeepStart, "a", "a", chat.ErrSameAnswers},
		{0, chat.KeepStart, "a", "a<|im_end|>", chat.ErrSameAnswers},
		{0, chat.KeepStart, "a", " \n", chat.ErrEmptyAnswer},
		{0, chat.KeepStart, "", "b", chat.ErrEmptyAnswer},
		{3, chat.KeepStart, "a", "b", chat.ErrPairCut},
		{5, chat.KeepStart, "abcd", "abce", chat.ErrPairCut},
		{n - 1, chat.DropLonger, " abc", " abd", chat.ErrPairCut},
		{n, chat.DropLonger, " abc", " abd", nil},
	} {
		_, err := encode(c.length, c.mode, c.chosen, c.rejected)
		require.ErrorIs(t, err, c.want, "%+v", c)
	}
	start, err := encode(n-1, chat.KeepStart, " abc", " abd!")
	require.NoError(t, err)
	require.Equal(t, whole.Chosen[:n-1], start.Chosen)
	require.Equal(t, 1+len(whole.Rejected)-(n-1), start.Cut)
	end, err := encode(n-1, chat.KeepEnd, " abc", " abd!")
	require.NoError(t, err)
	require.Equal(t, whole.Chosen[1:], end.Chosen)
	require.Equal(t, 2, end.ChosenStart)
	e := pairEncoder(t, 0)
	chosen, rejected, err := e.MarkedPair(whole)
	require.NoError(t, err)
	require.Equal(t, "xyz⟦ abc<|im_end|>⟧", chosen)
	require.Equal(t, "xyz⟦ abd!<|im_end|>⟧", rejected)
}

func TestCollatePairs(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	one := chat.PreferenceSample{Chosen: []int32{1, 2, 3}, Rejected: []int32{1, 2, 4, 5}, ChosenStart: 2,
		RejectedStart: 2, Reference: &[2]float32{-1, -2}, Margin: 0.5}
	two := chat.PreferenceSample{Chosen: []int32{7, 8}, Rejected: []int32{7, 9}, ChosenStart: 1, RejectedStart: 1,
		Reference: &[2]float32{-3, -4}}
	b, err := chat.CollatePairs(0)(c, []chat.PreferenceSample{one, two})
	require.NoError(t, err)
	defer b.Free()
	require.Equal(t, 2.0, b.Count)
	for name, want := range map[string][]float64{
		data.InputIDs:      {1, 2, 3, 0, 1, 2, 4, 5, 7, 8, 0, 0, 7, 9, 0, 0},
		data.AttentionMask: {1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0},
		data.ShiftLabels: {-100, 3, -100, -100, -100, 4, 5, -100, 8, -100, -100, -100, 9, -100, -100,
			-100},
		chat.ReferenceLogProbs: {-1, -2, -3, -4},
		chat.Margins:           {0.5, 0},
	} {
		require.Equal(t, want, tensor.ToSlice[float64](c, tensor.Cast(c, b.Tensors[name], tensor.Float64)), name)
		require.Equal(t, 2, b.Tensors[name].Size(0))
	}
	two.Reference = nil
	_, err = chat.CollatePairs(0)(c, []chat.PreferenceSample{one, two})
	require.ErrorContains(t, err, "1 of 2 samples have log-probabilities")
}

// FuzzParsePair: whatever a row has, it is refused or has a prompt's form, and its samples keep to max_length.
func FuzzParsePair(f *testing.F) {
	for _, seed := range []string{`{"prompt": "q", "chosen": "a", "rejected": "b"}`,
		`{"chosen": "q é", "rejected": "q"}`,
		`{"chosen": [{"from": "human", "value": "q"}], "rejected": [], "margin": "1e999"}`,
		`{"messages": [{"role": "user", "content": "q"}], "chosen": {"role": "assistant", "content": "a"},
			"rejected": "b"}`} {
		f.Add([]byte(seed))
	}
	tok, err := tokenizers.Load("../../examples/finetune/testdata/model/tokenizer.json")
	require.NoError(f, err)
	e := chat.Encoder{Tokenizer: tok, EOS: "<|im_end|>", MaxLength: 9}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := chat.ParsePair(text)
		if err != nil {
			return
		}
		require.Equal(t, p.PromptMessages == nil, p.ChosenMessages == nil)
		require.Equal(t, p.PromptMessages == nil, p.RejectedMessages == nil)
		for _, mode := range []chat.TruncationMode{chat.KeepStart, chat.KeepEnd, chat.DropLonger} {
			s, err := e.EncodePair(p, mode)
			if err != nil {
				continue
			}
			require.NotEqual(t, s.Chosen, s.Rejected)
			require.LessOrEqual(t, s.Length, 9)
			require.Less(t, s.ChosenStart, len(s.Chosen))
			require.Less(t, s.RejectedStart, len(s.Rejected))
		}
	})
}
