// SPDX-License-Identifier: Apache-2.0

package generation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// ask is a request for one text.
type ask struct {
	prompt []int
	opt    generation.Options
}

func asks() (list []ask) {
	long := make([]int, 90)
	for i := range long {
		long[i] = i * 7 % 50
	}
	for i, prompt := range [][]int{{5, 3, 5, 9, 3}, {7}, {1, 2, 1, 2, 1, 2, 1}, long, long[:40], {7}} {
		list = append(list, ask{prompt, generation.Options{MaxNewTokens: 5 + 17*i}}, ask{prompt,
			generation.Options{MaxNewTokens: 20, Temperature: 1.5, Seed: uint64(i), NoRepeatNGram: 2}})
	}
	return list
}

// TestEngine: texts that come and go in any order have the tokens of Generate, also where a context is full, and tell
// them one by one.
func TestEngine(t *testing.T) {
	m := loadTiny(t)
	var want [][]int
	for _, a := range asks() {
		want = append(want, generate(t, m, a.prompt, a.opt))
	}
	for _, cfg := range []generation.EngineConfig{{Rows: 4, Prefill: 16}, {Rows: 1}, {Rows: 12, Prefill: 1}} {
		e := generation.NewEngine(tensor.CPU(), m, cfg)
		var all sync.WaitGroup
		for i, a := range asks() {
			all.Go(func() {
				var seen []int
				a.opt.OnToken = func(id int) { seen = append(seen, id) }
				got, err := e.Generate(t.Context(), a.prompt, a.opt)
				require.NoError(t, err)
				require.Equal(t, want[i], got, "text %d with %+v", i, cfg)
				require.Equal(t, got, seen)
			})
			if i%3 == 0 {
				time.Sleep(time.Millisecond) // some begin while others are under way
			}
		}
		all.Wait()
		active, waiting := e.Load()
		require.Zero(t, active+waiting)
		e.Close()
		_, err := e.Generate(t.Context(), []int{1}, generation.Options{MaxNewTokens: 1})
		require.ErrorIs(t, err, generation.ErrClosed)
	}
}

// gate is a processor that lets a text continue token by token.
type gate chan bool

func (g gate) wait([]int, []float32) { <-g }

// hold starts a text that stands still until its gate opens, and waits until it has a row.
func hold(t *testing.T, e *generation.Engine, ctx context.Context, tokens int) (gate, chan error) {
	g, done := make(gate), make(chan error, 1)
	go func() {
		_, err := e.Generate(ctx, []int{1, 2}, generation.Options{MaxNewTokens: tokens,
			Processors: []generation.Processor{g.wait}})
		done <- err
	}()
	require.Eventually(t, func() bool { active, _ := e.Load(); return active == 1 }, time.Minute, time.Millisecond)
	return g, done
}

// TestEngineQueue: what waits is bounded, and a cancelled text makes room, under way or not.
func TestEngineQueue(t *testing.T) {
	e := generation.NewEngine(tensor.CPU(), loadTiny(t), generation.EngineConfig{Rows: 1, Waiting: 1})
	defer e.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	g, done := hold(t, e, ctx, 1000)
	waits, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := e.Generate(waits, []int{3}, generation.Options{MaxNewTokens: 1})
		left <- err
	}()
	require.Eventually(t, func() bool { _, waiting := e.Load(); return waiting == 1 }, time.Minute, time.Millisecond)
	_, err := e.Generate(t.Context(), []int{3}, generation.Options{MaxNewTokens: 1})
	require.ErrorIs(t, err, generation.ErrBusy)
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	_, waiting := e.Load()
	require.Zero(t, waiting)
	gone := errors.New("the client is gone")
	cancel(gone)
	require.Equal(t, gone, <-done)
	close(g)
	_, err = e.Generate(t.Context(), []int{3}, generation.Options{MaxNewTokens: 1})
	require.NoError(t, err, "there is room again")
}

// TestEngineFaults: what is wrong with one text is the error of that one.
func TestEngineFaults(t *testing.T) {
	e := generation.NewEngine(tensor.CPU(), loadTiny(t), generation.EngineConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	g, done := hold(t, e, ctx, 1000)
	close(g) // it continues beside the others
	for want, a := range map[string]ask{
		"99999": {[]int{1, 99999}, generation.Options{MaxNewTokens: 3}},
		"out of luck": {[]int{1}, generation.Options{MaxNewTokens: 3,
			Processors: []generation.Processor{panics}}},
		"the prompt is empty": {nil, generation.Options{}},
		"top_p = 2":           {[]int{1}, generation.Options{TopP: 2}},
	} {
		_, err := e.Generate(t.Context(), a.prompt, a.opt)
		require.ErrorContains(t, err, want)
	}
	out, err := e.Generate(t.Context(), []int{1}, generation.Options{})
	require.NoError(t, err)
	require.Empty(t, out)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	g, done = hold(t, e, t.Context(), 1000)
	closed := make(chan bool)
	go func() { e.Close(); close(closed) }()
	close(g)
	require.ErrorIs(t, <-done, generation.ErrClosed)
	<-closed
}

func panics([]int, []float32) { panic("out of luck") }

// TestEngineSwap: a text ends with the model that it began with, later ones have the new model, and Swap returns when
// nothing uses the old one.
func TestEngineSwap(t *testing.T) {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead, cfg.InitializerRange = 50, 64, 8, 2, 2, 0.5
	var models []*gpt2.Model
	var want [][]int
	opt := generation.Options{MaxNewTokens: 30}
	for seed := range 2 {
		m, err := gpt2.New(nn.NewInit(tensor.CPU(), uint64(seed)), cfg)
		require.NoError(t, err)
		models = append(models, m)
		want = append(want, generate(t, m, []int{1, 2}, opt))
	}
	require.NotEqual(t, want[0], want[1])
	e := generation.NewEngine(tensor.CPU(), models[0], generation.EngineConfig{Rows: 4})
	defer e.Close()
	g, held := hold(t, e, t.Context(), 30)
	swapped := make(chan error, 1)
	go func() { swapped <- e.Swap(t.Context(), tensor.CPU(), models[1]) }()
	ended := make(chan error, 1)
	go func() { // the held text stands still, and with it the engine: it needs its tokens
		for range 30 {
			select {
			case g <- true:
			case err := <-swapped:
				swapped <- err
				ended <- errors.New("Swap has not waited for a text")
				return
			}
		}
		ended <- nil
	}()
	require.NoError(t, <-ended)
	require.NoError(t, <-held)
	require.NoError(t, <-swapped)

	// Under load every text is one of the two, whole.
	stop := make(chan bool)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, err := e.Generate(t.Context(), []int{1, 2}, opt)
				require.NoError(t, err)
				require.Contains(t, want, got, fmt.Sprint(i))
			}
		})
	}
	for i := range 20 {
		require.NoError(t, e.Swap(t.Context(), tensor.CPU(), models[i%2]))
	}
	close(stop)
	all.Wait()
	got, err := e.Generate(t.Context(), []int{1, 2}, opt)
	require.NoError(t, err)
	require.Equal(t, want[1], got)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g, held = hold(t, e, t.Context(), 1)
	require.ErrorIs(t, e.Swap(ctx, tensor.CPU(), models[0]), context.Canceled)
	g <- true
	require.NoError(t, <-held)
}

// TestEngineMemory: an engine gives back all device memory, whatever ends its texts.
func TestEngineMemory(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 17, 8, 8, 2, 2
	m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
	require.NoError(t, err)
	before := dev.MemStats().InUse
	e := generation.NewEngine(dev, m, generation.EngineConfig{Rows: 3})
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := e.Generate(ctx, []int{1, 2 + 50*(i%2)}, generation.Options{MaxNewTokens: 40, OnToken: func(int) {
				if i == 4 {
					cancel()
				}
			}})
			require.Equal(t, i%2 == 1 || i == 4, err != nil, i)
		})
	}
	all.Wait()
	e.Close()
	require.Equal(t, before, dev.MemStats().InUse)
}

// fedTo counts the tokens that a model is fed.
type fedTo struct {
	*gpt2.Model
	tokens atomic.Int64
}

func (m *fedTo) Next(c *nn.Ctx, ids *tensor.Tensor, cache models.Cache) *tensor.Tensor {
	m.tokens.Add(int64(ids.Numel()))
	return m.Model.Next(c, ids, cache)
}

// fed generates with an engine, compares the tokens with those of Generate, and says how many the model was fed.
func (m *fedTo) fed(t *testing.T, e *generation.Engine, prompt []int) (fed int, all []int) {
	opt := generation.Options{MaxNewTokens: 8}
	m.tokens.Store(0)
	got, err := e.Generate(t.Context(), prompt, opt)
	require.NoError(t, err)
	fed = int(m.tokens.Load())
	c := nn.NewCtx(tensor.NewCtx(m.Transformer.WTE.Weight.Device()), nn.Walk(m.Model), false)
	want, err := generation.Generate(t.Context(), c, m.Model, prompt, opt)
	require.NoError(t, err)
	require.Equal(t, want, got)
	return fed, slices.Concat(prompt, got)
}

// TestPrefixCache: what a prompt has in common with earlier texts is not computed again, in little memory, and the
// tokens are the same.
func TestPrefixCache(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead, cfg.InitializerRange = 50, 256, 8, 2, 2, 0.5
	inner, err := gpt2.New(nn.NewInit(dev, 3), cfg)
	require.NoError(t, err)
	m := &fedTo{Model: inner}
	system := make([]int, 40)
	for i := range system {
		system[i] = i * i % 50
	}
	said := func(all []int, more ...int) []int { return slices.Concat(all, more) }
	before := dev.MemStats().InUse
	const one = 2 * 2 * 2 * 4 * 128 * 4 // bytes: keys and values, layers, heads, width, tokens, float32

	e := generation.NewEngine(dev, m, generation.EngineConfig{PrefixCache: 2 * one})
	fed, all := m.fed(t, e, said(system, 1, 2))
	require.Equal(t, 42+7, fed)
	fed, _ = m.fed(t, e, said(all, 3, 4, 5)) // the next turn: of the last answer the last token is new
	require.Equal(t, 1+3+7, fed)
	fed, _ = m.fed(t, e, said(system, 9, 9)) // another conversation with the system prompt
	require.Equal(t, 2+7, fed)
	fed, _ = m.fed(t, e, all) // the same again
	require.Equal(t, 1+7, fed)
	fed, _ = m.fed(t, e, said(system[:10], system...)) // too little in common
	require.Equal(t, 50+7, fed)
	fed, _ = m.fed(t, e, said(system, 9, 9)) // this one had to go
	require.Equal(t, 2+7, fed)
	require.Eventually(t, func() bool { return dev.MemStats().InUse == before+2*one }, time.Minute, time.Millisecond)

	m.tokens.Store(0)
	var together sync.WaitGroup // of prompts that come at once, too, one is computed
	long := said(all[:30], system...)
	for range 4 {
		together.Go(func() {
			_, err := e.Generate(t.Context(), long, generation.Options{MaxNewTokens: 1})
			require.NoError(t, err)
		})
	}
	together.Wait()
	require.LessOrEqual(t, m.tokens.Load(), int64(len(long)+3))

	cfg.InitializerRange = 0.4
	other, err := gpt2.New(nn.NewInit(dev, 4), cfg)
	require.NoError(t, err)
	with := dev.MemStats().InUse
	require.NoError(t, e.Swap(t.Context(), dev, other))
	require.Eventually(t, func() bool { return dev.MemStats().InUse == with-2*one }, time.Minute, time.Millisecond)
	fed, _ = (&fedTo{Model: other}).fed(t, e, system)
	require.Zero(t, fed, "the other model does not count")
	e.Close()

	e = generation.NewEngine(dev, m, generation.EngineConfig{PrefixCache: -1})
	defer e.Close()
	for range 2 {
		fed, _ = m.fed(t, e, system)
		require.Equal(t, 40+7, fed)
	}
}
