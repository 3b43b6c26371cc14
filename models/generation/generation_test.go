// SPDX-License-Identifier: Apache-2.0

package generation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

const tiny = "../gpt2/testdata/tiny"

func ints(t *testing.T, name string) []int {
	r, err := safetensors.Open(vfs.OS, filepath.Join(tiny, "golden.safetensors"))
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	e, ok := r.Lookup(name)
	require.True(t, ok, name)
	raw, err := r.ReadTensor(name)
	require.NoError(t, err)
	c := tensor.NewCtx(tensor.CPU())
	var out []int
	for _, id := range tensor.ToSlice[int64](c, tensor.FromBytes(c, raw, e.DType, e.Shape...)) {
		out = append(out, int(id))
	}
	return out
}

func loadTiny(t *testing.T) models.Generator {
	m, err := models.LoadPretrained(tensor.CPU(), tiny)
	require.NoError(t, err)
	return m.(models.Generator)
}

// training is a context as a trainer has it: gradients on, dropout on.
func training() *nn.Ctx { return nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, true) }

func generate(t *testing.T, m models.Generator, prompt []int, opt generation.Options) []int {
	out, err := generation.Generate(context.Background(), training(), m, prompt, opt)
	require.NoError(t, err)
	return out
}

// Greedy decoding writes what transformers' generate writes.
func TestGreedyGolden(t *testing.T) {
	prompt, want := ints(t, "prompt"), ints(t, "generated")
	require.Equal(t, prompt, want[:len(prompt)])
	var seen []int
	got := generate(t, loadTiny(t), prompt, generation.Options{
		MaxNewTokens: len(want) - len(prompt), OnToken: func(id int) { seen = append(seen, id) },
	})
	require.Equal(t, want[len(prompt):], got)
	require.Equal(t, got, seen)
}

// TestOptionsGolden: options do what transformers' do, and a batch of prompts of several lengths has its texts.
func TestOptionsGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/options.json")
	require.NoError(t, err)
	var golden struct {
		Prompt []int
		Runs   []struct {
			Options struct {
				RepetitionPenalty float64 `json:"repetition_penalty"`
				NoRepeatNGram     int     `json:"no_repeat_ngram_size"`
				MinNewTokens      int     `json:"min_new_tokens"`
				EOS               *int    `json:"eos_token_id"`
			}
			Prompts [][]int
			New     [][]int
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	m, different := loadTiny(t), map[string]bool{}
	for _, run := range golden.Runs {
		opt := generation.Options{MaxNewTokens: 24, RepetitionPenalty: run.Options.RepetitionPenalty,
			NoRepeatNGram: run.Options.NoRepeatNGram, MinNewTokens: run.Options.MinNewTokens}
		if end := run.Options.EOS; end != nil {
			opt.EOS = []int{*end}
		}
		if run.Prompts == nil {
			run.Prompts = [][]int{golden.Prompt}
		}
		got, err := generation.Batch(t.Context(), training(), m, run.Prompts, opt)
		require.NoError(t, err)
		require.Equal(t, run.New, got, "%+v", run.Options)
		different[fmt.Sprint(run.New)] = true
	}
	require.Len(t, different, len(golden.Runs), "options that change nothing test nothing")
}

// TestBatch: each text of a batch is what it is alone, whatever ends the others, also where the context is full.
func TestBatch(t *testing.T) {
	m := loadTiny(t)
	prompts := [][]int{{5, 3, 5, 9, 3}, {7}, {1, 2, 1, 2, 1, 2, 1}, {7}}
	for _, opt := range []generation.Options{
		{MaxNewTokens: 150},
		{MaxNewTokens: 30, EOS: []int{generate(t, m, prompts[0], generation.Options{MaxNewTokens: 5})[4]}},
		{MaxNewTokens: 20, NoRepeatNGram: 2, MinNewTokens: 3},
	} {
		seen := make([][]int, len(prompts))
		opt.OnBatchToken = func(text, id int) { seen[text] = append(seen[text], id) }
		got, err := generation.Batch(t.Context(), training(), m, prompts, opt)
		require.NoError(t, err)
		require.Equal(t, seen, got)
		if opt.OnBatchToken = nil; opt.MaxNewTokens > 100 {
			continue // the texts continue from the last half of the context at one time, not each at its own
		}
		for i, prompt := range prompts {
			require.Equal(t, generate(t, m, prompt, opt), got[i], "text %d", i)
		}
	}
	sampled := generation.Options{MaxNewTokens: 12, Temperature: 1.5, Seed: 3}
	got, err := generation.Batch(t.Context(), training(), m, [][]int{{7}, {7}}, sampled)
	require.NoError(t, err)
	require.Equal(t, generate(t, m, []int{7}, sampled), got[0])
	require.NotEqual(t, got[0], got[1], "each text has its own draws")
	_, err = generation.Batch(t.Context(), training(), m, [][]int{{7}, {}}, sampled)
	require.EqualError(t, err, "generation: prompt 2 of 2 is empty: want at least one token")
	sampled.NumReturnSequences = 2
	several, err := generation.Batch(t.Context(), training(), m, [][]int{{7}, {5, 3}}, sampled)
	require.NoError(t, err)
	require.Len(t, several, 4)
	require.Equal(t, got, several[:2], "the texts of a prompt follow one another")
	require.Equal(t, got[0], generate(t, m, []int{7}, sampled), "Generate has one")
	for _, chunk := range []int{1, 3, 64} {
		opt := generation.Options{MaxNewTokens: 100}
		whole, err := generation.Batch(t.Context(), training(), m, prompts, opt)
		require.NoError(t, err)
		opt.PrefillChunk = chunk
		parts, err := generation.Batch(t.Context(), training(), m, prompts, opt)
		require.NoError(t, err)
		require.Equal(t, whole, parts, "prompts in parts of %d tokens", chunk)
	}
	got, err = generation.Batch(t.Context(), training(), m, nil, sampled)
	require.NoError(t, err)
	require.Empty(t, got)
}

// letters is a tokenizer whose tokens are pieces of text.
type letters []string

func (l letters) DecodeText(ids []int32) (text string, err error) {
	for _, id := range ids {
		text += l[id]
	}
	return text, nil
}

// TestStopStrings: a string that ends a text may lie across tokens, in one, or behind tokens without text.
func TestStopStrings(t *testing.T) {
	words := letters{"a", "STO", "P now", "", "xEN", "D.", "OP"}
	stop := generation.StopStrings(words, "STOP", "END")
	for _, c := range []struct {
		tokens []int
		want   bool
	}{
		{[]int{0, 1}, false}, {[]int{0, 1, 2}, true}, {[]int{1, 3, 3, 3, 3, 3, 3, 3, 2}, true},
		{[]int{4, 5}, true}, {[]int{4, 0, 5}, false}, {[]int{0, 0, 0, 0, 0, 0, 0, 6}, false}, {[]int{3}, false},
	} {
		require.Equal(t, c.want, stop(c.tokens), c.tokens)
	}
	require.Equal(t, "say ", generation.CutStop("say END or STOP", "STOP", "END", ""))
	require.Equal(t, "all", generation.CutStop("all"))
	chain := make([][]float32, len(words))
	for i := range chain {
		chain[i] = make([]float32, len(words))
		chain[i][(i+1)%len(words)] = 1
	}
	require.Equal(t, []int{1, 2}, generate(t, &table{logits: chain, limit: 9}, []int{0},
		generation.Options{MaxNewTokens: 9, Stop: stop}))
}

// pieces are texts by their numbers, of which each is shown at once.
type pieces []string

func (p pieces) Next(id int32) (string, error) { return p[id], nil }
func (pieces) Flush() string                   { return "" }

// What may begin a stop is held back until it is known, and the stop is not shown.
func TestTextStream(t *testing.T) {
	for _, c := range []struct {
		pieces pieces
		want   string
		stops  bool
	}{
		{pieces{"a S", "T", "OP b", "c"}, "a ", true}, {pieces{"ST", "OK"}, "STOK", false},
		{pieces{"日本S", "T"}, "日本ST", false}, {pieces{"no stop at all"}, "no stop at all", false},
		{pieces{"STOP"}, "", true},
	} {
		s, shown := generation.NewTextStream(c.pieces, []int{9}, "STOP", "END."), ""
		for id := range c.pieces {
			text, err := s.Next(id)
			require.NoError(t, err)
			require.True(t, utf8.ValidString(text))
			shown += text
		}
		text, err := s.Next(9)
		require.NoError(t, err)
		require.Empty(t, text, "of a token that ends the text")
		require.Equal(t, c.want, shown+s.Flush(), c.pieces)
		require.Equal(t, c.stops, s.Stopped(), c.pieces)
	}
}

// TestProcessors: a program's own rules see the text so far, and may not forbid everything.
func TestProcessors(t *testing.T) {
	m := &table{logits: [][]float32{{1, 3, 2}}, limit: 8}
	forbid := func(ids ...int) generation.Processor {
		return func(tokens []int, logits []float32) {
			require.NotEmpty(t, tokens)
			for _, id := range ids {
				logits[id] = float32(math.Inf(-1))
			}
		}
	}
	opt := generation.Options{MaxNewTokens: 2, Processors: []generation.Processor{forbid(1)}}
	require.Equal(t, []int{2, 2}, generate(t, m, []int{0}, opt))
	opt.Processors = append(opt.Processors, forbid(0, 2))
	_, err := generation.Generate(t.Context(), training(), m, []int{0}, opt)
	require.ErrorContains(t, err, "no token may follow token 1")
}

func TestGreedyEOS(t *testing.T) {
	prompt, want := ints(t, "prompt"), ints(t, "generated")[5:]
	eos := want[3]
	end := slices.Index(want, eos) + 1
	require.Equal(t, want[:end], generate(t, loadTiny(t), prompt,
		generation.Options{MaxNewTokens: 12, EOS: []int{eos}}))
	require.Empty(t, generate(t, loadTiny(t), prompt, generation.Options{}))
}

// table is a model whose next token depends only on the last token, by a table of logits.
type table struct {
	logits [][]float32
	limit  int
	fed    [][]int32 // what Next was called with
	maxLen int       // the most tokens that the cache held
	freed  bool
}

type tableCache struct {
	t      *table
	length int
}

func (k *tableCache) Len() int  { return k.length }
func (k *tableCache) Cap() int  { return k.t.limit }
func (k *tableCache) Reset()    { k.length = 0 }
func (k *tableCache) Pad([]int) {}
func (k *tableCache) Free()     { k.t.freed = true }

func (*table) Forward(*nn.Ctx, *data.Batch) models.Output { return models.Output{} }

func (m *table) NewCache(c *nn.Ctx, _ int) models.Cache { return &tableCache{t: m} }

func (m *table) Next(c *nn.Ctx, ids *tensor.Tensor, cache models.Cache) *tensor.Tensor {
	if c.Grad() || c.Training {
		panic("generation must neither record nor drop out")
	}
	in := tensor.ToSlice[int32](c.Ctx, ids)
	m.fed = append(m.fed, in)
	k := cache.(*tableCache)
	k.length += ids.Size(1)
	m.maxLen = max(m.maxLen, k.length)
	var rows []float32
	for i := range ids.Size(0) {
		rows = append(rows, m.logits[int(in[(i+1)*ids.Size(1)-1])%len(m.logits)]...)
	}
	return tensor.FromSlice(c.Ctx, rows, ids.Size(0), len(rows)/ids.Size(0))
}

// draw counts which tokens come after token 0 in n draws.
func draw(t *testing.T, logits []float32, n int, opt generation.Options) []float64 {
	m := &table{logits: [][]float32{logits}, limit: 8}
	opt.MaxNewTokens = n
	p := make([]float64, len(logits))
	for _, id := range generate(t, m, []int{0}, opt) {
		p[id] += 1 / float64(n)
	}
	require.True(t, m.freed)
	return p
}

func softmax(logits []float32, temperature float64) []float64 {
	p, sum := make([]float64, len(logits)), 0.0
	for i, x := range logits {
		p[i] = math.Exp(float64(x) / temperature)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

func TestSampling(t *testing.T) {
	const n = 4000
	logits := []float32{1, 3, -2, 2.5, 0}
	near := func(want, got []float64, what string) {
		require.InDeltaSlice(t, want, got, 4*0.5/math.Sqrt(n), what)
		for i := range want {
			if want[i] == 0 {
				require.Zero(t, got[i], what)
			}
		}
	}
	for _, temperature := range []float64{0.5, 1, 3} {
		near(softmax(logits, temperature), draw(t, logits, n, generation.Options{Temperature: temperature}),
			"temperature")
	}
	p := softmax(logits, 1)
	two := p[1] + p[3]
	near([]float64{0, p[1] / two, 0, p[3] / two, 0}, draw(t, logits, n, generation.Options{Temperature: 1, TopK: 2}),
		"top-k")
	near(p, draw(t, logits, n, generation.Options{Temperature: 1, TopK: 99}), "top-k of more than there are")
	near([]float64{0, 1, 0, 0, 0}, draw(t, logits, n, generation.Options{Temperature: 1, TopK: 1}), "top-1 is greedy")

	near([]float64{0, p[1] / two, 0, p[3] / two, 0},
		draw(t, logits, n, generation.Options{Temperature: 1, TopP: p[1] + 0.01}),
		"top-p keeps the token that crosses p")
	near([]float64{0, 1, 0, 0, 0}, draw(t, logits, n, generation.Options{Temperature: 1, TopP: 1e-9}),
		"top-p keeps one at least")
	near(p, draw(t, logits, n, generation.Options{Temperature: 1, TopP: 1}), "top-p of 1")
	// Together, top-p works on what top-k left: p[1] is 0.62 of the two.
	near([]float64{0, 1, 0, 0, 0}, draw(t, logits, n, generation.Options{Temperature: 1, TopK: 2, TopP: 0.6}),
		"top-k, then top-p")

	near([]float64{0, p[1] / two, 0, p[3] / two, 0}, draw(t, logits, n, generation.Options{Temperature: 1, MinP: 0.2}),
		"min-p") // 1, e^-0.5, e^-2, …: 0.14 is too little
	near([]float64{0, 1, 0, 0, 0}, draw(t, logits, n, generation.Options{Temperature: 1, TopP: 0.99, MinP: 1}),
		"min-p of 1 keeps the likeliest")

	near([]float64{0, 1, 0}, draw(t, []float32{-1e30, 5, float32(math.Inf(-1))}, n, generation.Options{Temperature: 1}),
		"impossible tokens")
	require.Equal(t, draw(t, logits, n, generation.Options{Temperature: 1, Seed: 1}),
		draw(t, logits, n, generation.Options{Temperature: 1, Seed: 1}))
	require.NotEqual(t, draw(t, logits, n, generation.Options{Temperature: 1, Seed: 1}),
		draw(t, logits, n, generation.Options{Temperature: 1, Seed: 2}))
	near([]float64{0, 1, 0}, draw(t, []float32{1, 2, 2}, 10, generation.Options{}), "greedy takes the first of equals")
}

// When the context is full, generation continues from its last half.
func TestContextOverflow(t *testing.T) {
	// Token i is followed by i+1.
	successor := make([][]float32, 64)
	for i := range successor {
		successor[i] = make([]float32, 64)
		successor[i][(i+1)%64] = 1
	}
	for _, limit := range []int{1, 2, 5, 8} {
		m := &table{logits: successor, limit: limit}
		out := generate(t, m, []int{3, 4, 5}, generation.Options{MaxNewTokens: 20})
		for i, id := range out {
			require.Equal(t, 6+i, id)
		}
		require.Len(t, out, 20)
		require.LessOrEqual(t, m.maxLen, limit)
	}
	m := &table{logits: successor, limit: 8}
	generate(t, m, []int{1, 2, 3, 4, 5, 6}, generation.Options{MaxNewTokens: 4})
	require.Equal(t, [][]int32{{1, 2, 3, 4, 5, 6}, {7}, {8}, {6, 7, 8, 9}}, m.fed)
	m = &table{logits: successor, limit: 4}
	generate(t, m, []int{1, 2, 3, 4, 5, 6}, generation.Options{MaxNewTokens: 1})
	require.Equal(t, [][]int32{{5, 6}}, m.fed, "a prompt longer than the context")

	// A real model runs over its context too.
	out := generate(t, loadTiny(t), ints(t, "prompt"), generation.Options{MaxNewTokens: 150})
	require.Len(t, out, 150)
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	m := loadTiny(t)
	want := generate(t, m, []int{1, 2}, generation.Options{MaxNewTokens: 3})
	var got []int
	out, err := generation.Generate(ctx, training(), m, []int{1, 2},
		generation.Options{MaxNewTokens: 50, OnToken: func(id int) {
			if got = append(got, id); len(got) == 3 {
				cancel()
			}
		}})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, want, out)
	out, err = generation.Generate(ctx, training(), m, []int{1}, generation.Options{MaxNewTokens: 5})
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, out)

	// Who ends it for a reason gets that reason, alone.
	ctx, stop := context.WithCancelCause(t.Context())
	gone := errors.New("the reader is gone")
	stop(gone)
	_, err = generation.Generate(ctx, training(), m, []int{1}, generation.Options{MaxNewTokens: 5})
	require.EqualError(t, err, gone.Error())
}

func TestGenerateErrors(t *testing.T) {
	m := loadTiny(t)
	fail := func(m models.Generator, prompt []int, opt generation.Options) string {
		_, err := generation.Generate(context.Background(), training(), m, prompt, opt)
		require.Error(t, err)
		return err.Error()
	}
	require.Equal(t, "generation: the prompt is empty: want at least one token",
		fail(m, nil, generation.Options{MaxNewTokens: 1}))
	require.Equal(t, "generation: max_new_tokens = -1: want at least 0; temperature = -1: want a number ≥ 0; top_k = "+
		"-2: want at least 0; "+
		"top_p = 1.5: want a probability in [0, 1]",
		fail(m, []int{1}, generation.Options{MaxNewTokens: -1, Temperature: -1, TopK: -2, TopP: 1.5}))
	for _, penalty := range []float64{-1, math.NaN(), math.Inf(1)} {
		require.Contains(t, fail(m, []int{1}, generation.Options{RepetitionPenalty: penalty}), "repetition_penalty")
	}
	require.Contains(t, fail(m, []int{1}, generation.Options{Temperature: math.NaN(), TopP: math.NaN()}),
		"temperature = NaN: want a number ≥ 0; top_p = NaN")
	require.Contains(t, fail(m, []int{1, 211}, generation.Options{MaxNewTokens: 1}), "211",
		"an id beyond the vocabulary")
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		broken := &table{logits: [][]float32{{1, float32(bad), 3}}, limit: 8}
		for _, temperature := range []float64{0, 1} {
			require.Contains(t, fail(broken, []int{1, 2},
				generation.Options{MaxNewTokens: 1, Temperature: temperature}),
				"generation: the largest logit of token 2 is ")
		}
	}
}

// Generation gives back all device memory, also when it fails.
func TestMemory(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 17, 8, 8, 2, 2
	m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
	require.NoError(t, err)
	c := nn.NewCtx(tensor.NewCtx(dev), nil, false)
	before := dev.MemStats().InUse
	for _, prompt := range [][]int{{1, 2, 3}, {1, 99}} {
		_, err := generation.Generate(context.Background(), c, m, prompt, generation.Options{MaxNewTokens: 20})
		require.Equal(t, prompt[1] == 99, err != nil)
		require.Equal(t, before, dev.MemStats().InUse)
	}
}
