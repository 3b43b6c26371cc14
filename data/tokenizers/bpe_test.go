// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const endOfText = "<|endoftext|>"

// documents yields texts without errors.
func documents(texts ...string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, text := range texts {
			if !yield(text, nil) {
				return
			}
		}
	}
}

// source is real text: the files of this package.
func source(t testing.TB) []string {
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var texts []string
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		texts = append(texts, string(data))
	}
	return texts
}

func trainOn(t testing.TB, size int, texts ...string) *Tokenizer {
	bpe, err := Train(context.Background(), documents(texts...),
		TrainOptions{VocabSize: size, SpecialTokens: []string{endOfText}})
	require.NoError(t, err)
	return bpe
}

func TestEncodeCompresses(t *testing.T) {
	texts := source(t)
	bpe := trainOn(t, 600, texts...)
	require.Equal(t, 600, bpe.VocabSize())
	all := strings.Join(texts, "")
	ids := must(t, bpe.Encode)(all)
	require.Less(t, len(ids)*9, len(all)*5)
	back, err := bpe.Decode(ids)
	require.NoError(t, err)
	require.Equal(t, all, back)
}

func TestEncodeDoesNotDependOnWorkersOrCache(t *testing.T) {
	bpe := trainOn(t, 500, source(t)...)
	texts := append(source(t), "", endOfText, "a"+endOfText+endOfText+"b", strings.Repeat("x y\n", 50_000),
		strings.Repeat("=", 5000))
	want := make([][]int32, len(texts))
	for i, text := range texts {
		want[i] = must(t, bpe.Encode)(text)
	}
	for _, workers := range []int{0, 1, 2, 3, 8} {
		got, err := bpe.EncodeAll(context.Background(), texts, workers)
		require.NoError(t, err)
		require.Equal(t, want, got, "%d workers", workers)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := bpe.EncodeAll(ctx, texts, 2)
	require.ErrorIs(t, err, context.Canceled)
}

// TestMergeLong holds the heap against the scan, which is the definition.
func TestMergeLong(t *testing.T) {
	tok := trainOn(t, 700, append(source(t), strings.Repeat("a", 37)+" "+strings.Repeat("ab", 99))...)
	rapid.Check(t, func(t *rapid.T) {
		word := strings.Join(
			rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "e", "t", "err", "return", "=", "\xff"})).Draw(t,
				"word"), "")
		model := tok.model.(*bpe)
		tokens := model.symbols(nil, word)
		want := model.mergeShort(slices.Clone(tokens))
		require.Equal(t, want, newEncoder(tok).mergeLong(model, tokens))
	})
}

func TestAddedTokens(t *testing.T) {
	bpe, err := Train(context.Background(), documents("some text, some more"), TrainOptions{
		VocabSize: 262, SpecialTokens: []string{endOfText, "<|end", "<pad>"},
	})
	require.NoError(t, err)
	decode := func(id int32) string {
		b, err := bpe.AppendToken(nil, id)
		require.NoError(t, err)
		return string(b)
	}
	ids := must(t, bpe.Encode)("<|endoftext|><|end<|endo<pad>")
	require.Equal(t, []int32{0, 1, 1}, ids[:3], "the longest of those that start first")
	require.Equal(t, int32(2), ids[len(ids)-1])
	require.Equal(t, endOfText, decode(0))
	require.NotContains(t, must(t, bpe.EncodeOrdinary)(endOfText), int32(0))
	id, ok := bpe.TokenID(endOfText)
	require.True(t, ok)
	require.Zero(t, id)
	_, ok = bpe.TokenID("no such token")
	require.False(t, ok)
	require.Equal(t, []AddedToken{
		{ID: 0, Content: endOfText, Special: true}, {ID: 1, Content: "<|end", Special: true},
		{ID: 2, Content: "<pad>", Special: true},
	}, bpe.AddedTokens())
}

func TestDecodeRefusesForeignIDs(t *testing.T) {
	bpe := trainOn(t, 260, "aaa bbb")
	_, err := bpe.Decode([]int32{5, int32(bpe.VocabSize())})
	require.ErrorContains(t, err, "outside the vocabulary")
	require.ErrorContains(t, err, "position 1")
	_, err = bpe.Decode([]int32{-1})
	require.ErrorContains(t, err, "token id -1 is outside the vocabulary")
}

func FuzzRoundTrip(f *testing.F) {
	bpe := trainOn(f, 400, source(f)...)
	f.Add("func main() {\n\tprintln(\"it's\")\n}\n")
	f.Add("\xff\xfe" + endOfText + " \u3000\u00e9")
	f.Fuzz(func(t *testing.T, text string) {
		for _, ids := range [][]int32{must(t, bpe.Encode)(text), must(t, bpe.EncodeOrdinary)(text)} {
			back, err := bpe.Decode(ids)
			require.NoError(t, err)
			require.Equal(t, text, back)
		}
	})
}

func TestTrainDoesNotDependOnWorkers(t *testing.T) {
	texts := source(t)
	var files [][]byte
	for _, workers := range []int{1, 2, 5} {
		bpe, err := Train(context.Background(), documents(texts...), TrainOptions{VocabSize: 500, Workers: workers})
		require.NoError(t, err)
		var b bytes.Buffer
		_, err = bpe.WriteTo(&b)
		require.NoError(t, err)
		files = append(files, b.Bytes())
	}
	require.Equal(t, files[0], files[1])
	require.Equal(t, files[0], files[2])
}

// naiveTrain counts all pairs again before every merge.
func naiveTrain(texts []string, merges int, vocab []string) []string {
	counts := map[string]int{}
	for _, text := range texts {
		for _, word := range split(text) {
			counts[word]++
		}
	}
	ids := map[string]int{}
	for id, token := range vocab[:256] {
		ids[token] = id
	}
	words := map[string][]string{}
	for word := range counts {
		for _, b := range []byte(word) {
			words[word] = append(words[word], string(byteRunes[b]))
		}
	}
	var made []string
	for range merges {
		pairs := map[[2]string]int{}
		for word, tokens := range words {
			for i := range len(tokens) - 1 {
				pairs[[2]string(tokens[i:i+2])] += counts[word]
			}
		}
		var best [2]string
		for p, n := range pairs {
			b := pairs[best]
			if n > b || n == b && (ids[p[0]] < ids[best[0]] || ids[p[0]] == ids[best[0]] && ids[p[1]] < ids[best[1]]) {
				best = p
			}
		}
		if pairs[best] == 0 {
			break
		}
		made = append(made, best[0]+" "+best[1])
		if token := best[0] + best[1]; ids[token] == 0 {
			ids[token] = len(ids)
		}
		for word, tokens := range words {
			var out []string
			for i := 0; i < len(tokens); i++ {
				if i+1 < len(tokens) && tokens[i] == best[0] && tokens[i+1] == best[1] {
					out = append(out, tokens[i]+tokens[i+1])
					i++
				} else {
					out = append(out, tokens[i])
				}
			}
			words[word] = out
		}
	}
	return made
}

func TestTrainAgreesWithCountingAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-e]{1,6}`), 1, 30).Draw(t, "words")
		const merges = 6
		counts, err := countWords(context.Background(), documents(strings.Join(words, " ")), 1)
		require.NoError(t, err)
		tr := newTrainer(counts, TrainOptions{VocabSize: 256 + merges})
		require.NoError(t, tr.run(context.Background()))
		var got []string
		for _, p := range tr.merges {
			got = append(got, tr.vocab[p.left()]+" "+tr.vocab[p.right()])
		}
		if len(tr.rankedMerges()) == len(tr.merges) && len(tr.merges) == len(tr.vocab)-256 {
			require.Equal(t, naiveTrain([]string{strings.Join(words, " ")}, merges, tr.vocab), got)
		}
	})
}

func TestTrainOptions(t *testing.T) {
	ctx := context.Background()
	for want, o := range map[string]TrainOptions{
		"vocabulary size is 256: want at least 257": {VocabSize: 256, SpecialTokens: []string{"<s>"}},
		"vocabulary size is -1":                     {VocabSize: -1},
		"minimum frequency is -2":                   {VocabSize: 300, MinFrequency: -2},
		`special token "<s>"`:                       {VocabSize: 300, SpecialTokens: []string{"<s>", "<s>"}},
		`special token ""`:                          {VocabSize: 300, SpecialTokens: []string{""}},
		`special token "!"`:                         {VocabSize: 300, SpecialTokens: []string{"!"}},
	} {
		_, err := Train(ctx, documents("text"), o)
		require.ErrorContains(t, err, want)
	}
	_, err := Train(ctx, documents("", ""), TrainOptions{VocabSize: 300})
	require.ErrorContains(t, err, "no text")

	broken := errors.New("disk on fire")
	_, err = Train(ctx, func(yield func(string, error) bool) {
		_ = yield("good", nil) && yield("", broken)
	}, TrainOptions{VocabSize: 300})
	require.ErrorIs(t, err, broken)

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = Train(cancelled, documents(source(t)...), TrainOptions{VocabSize: 300})
	require.ErrorIs(t, err, context.Canceled)
}

func TestTrainMinFrequencyAndProgress(t *testing.T) {
	var calls [][2]int
	bpe, err := Train(context.Background(), documents("ab ab ab cd cd ef"), TrainOptions{
		VocabSize: 300, MinFrequency: 2,
		Progress: func(done, total int) { calls = append(calls, [2]int{done, total}) },
	})
	require.NoError(t, err)
	require.Equal(t, 260, bpe.VocabSize(), "' c', 'ab', ' ab' and ' cd' occur twice or more")
	require.Equal(t, [][2]int{{1, 44}, {2, 44}, {3, 44}, {4, 44}}, calls)
}

// A pre-token that is left out counts, as in HuggingFace's library.
func TestWordsWithoutTokensCount(t *testing.T) {
	tok, err := Read(strings.NewReader(`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
		"pre_tokenizer": {"type": "WhitespaceSplit"}}`))
	require.NoError(t, err)
	e, err := tok.Tokenize("a bb a", EncodeOptions{})
	require.NoError(t, err)
	require.Equal(t, []int32{0, 2}, e.Words)
}
