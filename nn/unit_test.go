// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// block is Linear → GELU → Dropout → Linear with a residual connection.
type block struct {
	Up   *nn.Linear  `nn:"up"`
	Drop *nn.Dropout `nn:"drop"`
	Down *nn.Linear  `nn:"down"`
}

func (b *block) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, b, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		h := tensor.GELU(c.Ctx, b.Up.Forward(c, x))
		return tensor.Add(c.Ctx, x, b.Down.Forward(c, b.Drop.Forward(c, h)))
	}, x)
}

type stack struct {
	H []*block `nn:"h"`
}

func (s *stack) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, s, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		for _, b := range s.H {
			x = b.Forward(c, x)
		}
		return x
	}, x)
}

const stackWidth = 4

func newStack(dev *tensor.Device, blocks int) *stack {
	s, in := &stack{}, nn.NewInit(dev, 1).Sub("h")
	for i := range blocks {
		in := in.Sub(fmt.Sprint(i))
		s.H = append(s.H, &block{
			Up: nn.NewLinear(in.Sub("up"), nn.LinearConfig{In: stackWidth, Out: 8}), Drop: &nn.Dropout{P: 0.3},
			Down: nn.NewLinear(in.Sub("down"), nn.LinearConfig{In: 8, Out: stackWidth}),
		})
	}
	return s
}

func (s *stack) units() []nn.Module {
	var us []nn.Module
	for _, b := range s.H {
		us = append(us, b)
	}
	return us
}

func samples(c *tensor.Ctx, n int) *tensor.Tensor {
	return tensor.Normal(c, tensor.Float32, 99, 0, 1, n, stackWidth)
}

// An error names the module in which it happened, by its path in the model.
func TestUnitPathInErrors(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	s := newStack(tensor.CPU(), 2)
	s.H[1].Down = nn.NewLinear(newInit(), nn.LinearConfig{In: 5, Out: stackWidth})
	forward := func(tree *nn.Tree) error {
		return tensor.Try(func() { s.Forward(nn.NewCtx(c, tree, false), samples(c, 3)) })
	}
	var e *tensor.Error
	require.ErrorAs(t, forward(nn.Walk(s)), &e)
	require.Equal(t, "h.1.down", e.Where)
	require.ErrorAs(t, forward(nil), &e)
	require.Equal(t, "h.1.down", e.Where, "without a tree the outermost Unit walks")

	// A module outside the tree goes by its type.
	stray := nn.NewLinear(newInit(), nn.LinearConfig{In: 5, Out: 1})
	require.ErrorAs(t, tensor.Try(func() { stray.Forward(nn.NewCtx(c, nn.Walk(s), false), samples(c, 3)) }), &e)
	require.Equal(t, "nn.Linear", e.Where)
}

// A Unit frees what it computed on the way, at once without gradients and after Backward
// with them.
func TestUnitFreesIntermediates(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	s := newStack(dev, 3)
	c := nn.NewCtx(tensor.NewCtx(dev), nn.Walk(s), true)
	const n = 64
	run := func(c *nn.Ctx, backward bool) (kept int64) {
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			x := samples(c.Ctx, n)
			dev.Collect()
			before := dev.MemStats().InUse
			y := s.Forward(c, x)
			kept = dev.MemStats().InUse - before
			if backward {
				tensor.Backward(c.Ctx, []*tensor.Tensor{y},
					[]*tensor.Tensor{tensor.Ones(c.Ctx, tensor.Float32, n, stackWidth)}, nil)
			}
			return nil
		})
		return kept
	}
	inference := c.With(c.NoGrad())
	require.EqualValues(t, n*stackWidth*4, run(inference, false), "the output alone stays")
	require.Greater(t, run(c, true), int64(n*stackWidth*4*3), "the graph keeps what gradients need")
	dev.Collect()
	after := dev.MemStats().InUse
	less := run(c.WithRecompute(s.units()), true)
	require.EqualValues(t, n*stackWidth*4*3, less, "with recomputation the blocks' outputs stay")
	require.Equal(t, after, dev.MemStats().InUse, "nothing outlives a step but gradients")
	run(c, false)
	require.Equal(t, after, dev.MemStats().InUse, "nor does a graph that was never run")
}

func gradients(c *tensor.Ctx, m nn.Module) map[string][]byte {
	out := map[string][]byte{}
	for _, p := range nn.NamedParameters(m) {
		out[p.Name] = tensor.ReadBytes(c, p.Grad())
	}
	return out
}

// Recomputation gives the bits of the plain pass, dropout included, for the inputs'
// gradients too; several recomputed passes may be alive at once.
func TestUnitRecomputeBits(t *testing.T) {
	run := func(recompute bool, passes int) (bits [][]byte) {
		s := newStack(tensor.CPU(), 3)
		root := tensor.NewCtx(tensor.CPU())
		c := nn.NewCtx(root.WithRandom(5, 40), nn.Walk(s), true)
		if recompute {
			c = c.WithRecompute(s.units())
		}
		var xs []*tensor.Tensor
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			var ys []*tensor.Tensor
			for range passes {
				x := samples(root, 6).SetRequiresGrad(true)
				y := s.Forward(c, x)
				xs, ys = append(xs, x), append(ys, tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false))
				bits = append(bits, tensor.ReadBytes(root, y))
			}
			tensor.Backward(c.Ctx, ys, nil, nil)
			return nil
		})
		for _, x := range xs {
			bits = append(bits, tensor.ReadBytes(root, x.Grad()))
		}
		for _, p := range nn.NamedParameters(s) {
			bits = append(bits, tensor.ReadBytes(root, p.Grad()))
		}
		return bits
	}
	for passes := 1; passes <= 2; passes++ {
		require.Equal(t, run(false, passes), run(true, passes))
	}
}

// recorder writes down the hooks of a module as they run.
func recorder(log *[]string, name string) *nn.Hooks {
	note := func(what string) { *log = append(*log, name+" "+what) }
	return &nn.Hooks{
		PreForward: func(*nn.Ctx) { note("pre-forward") }, PostForward: func(*nn.Ctx) { note("post-forward") },
		PreBackward: func(*tensor.Ctx) { note("pre-backward") }, PostBackward: func(*tensor.Ctx) {
			note("post-backward")
		},
	}
}

func TestUnitHooks(t *testing.T) {
	s := newStack(tensor.CPU(), 2)
	tree := nn.Walk(s)
	var log []string
	var removes []func()
	for _, m := range []struct {
		name   string
		module nn.Module
	}{{"stack", s}, {"h.0", s.H[0]}, {"h.0.up", s.H[0].Up}, {"h.1", s.H[1]}} {
		removes = append(removes, tree.AddHooks(m.module, recorder(&log, m.name)))
	}
	root := tensor.NewCtx(tensor.CPU())
	x := samples(root, 2).SetRequiresGrad(true)
	for _, p := range nn.NamedParameters(s) {
		p.OnGrad(func(*tensor.Ctx, *tensor.Tensor) {
			if p.Name == "h.0.up.weight" || p.Name == "h.1.up.weight" {
				log = append(log, p.Name)
			}
		})
	}
	step := func(c *nn.Ctx) []string {
		log = nil
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			y := tensor.Sum(c.Ctx, s.Forward(c, x), nil, false)
			log = append(log, "backward")
			tensor.Backward(c.Ctx, []*tensor.Tensor{y}, nil, nil)
			return nil
		})
		return log
	}
	c := nn.NewCtx(root, tree, true)
	forward := []string{"stack pre-forward", "h.0 pre-forward", "h.0.up pre-forward", "h.0.up post-forward",
		"h.0 post-forward",
		"h.1 pre-forward", "h.1 post-forward", "stack post-forward"}
	backward := []string{"backward", "stack pre-backward", "h.1 pre-backward", "h.1.up.weight", "h.1 post-backward",
		"h.0 pre-backward", "h.0.up pre-backward", "h.0.up.weight", "h.0.up post-backward", "h.0 post-backward",
		"stack post-backward"}
	require.Equal(t, append(forward[:len(forward):len(forward)], backward...), step(c))

	// Recomputed modules run their inner Units again before their gradient.
	again := []string{"backward", "stack pre-backward", "h.1 pre-backward", "h.1.up.weight", "h.1 post-backward",
		"h.0 pre-backward", "h.0.up pre-forward", "h.0.up post-forward", "h.0.up pre-backward", "h.0.up post-backward",
		"h.0.up.weight",
		"h.0 post-backward", "stack post-backward"}
	require.Equal(t, append(forward[:len(forward):len(forward)], again...), step(c.WithRecompute(s.units())))

	log = nil
	s.Forward(c.With(c.NoGrad()), x)
	require.Equal(t, forward, log, "without gradients the forward hooks run")

	for _, remove := range removes {
		remove()
	}
	require.Equal(t, []string{"backward", "h.1.up.weight", "h.0.up.weight"}, step(c))
}

// Hooks of one module nest, and each can be removed by itself. They also run behind a module that is fed with token
// ids.
func TestUnitHooksNest(t *testing.T) {
	in := newInit()
	m := nn.NewSequential(nn.NewEmbedding(in.Sub("0"), nn.EmbeddingConfig{Rows: 5, Dim: 4}),
		nn.NewLinear(in.Sub("1"), nn.LinearConfig{In: 4, Out: 2}))
	tree := nn.Walk(m)
	var log []string
	tree.AddHooks(m.Layers[0], recorder(&log, "outer"))
	remove := tree.AddHooks(m.Layers[0], recorder(&log, "inner"))
	m.Layers[0].(*nn.Embedding).Weight.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { log = append(log, "gradient") })
	step := func(c *nn.Ctx) []string {
		log = nil
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			y := m.Forward(c, tensor.Zeros(c.Ctx, tensor.Int64, 2, 3))
			tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, y, nil, false)}, nil, nil)
			return nil
		})
		return log
	}
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), tree, true)
	for _, c := range []*nn.Ctx{c, c.WithRecompute([]nn.Module{m.Layers[0]})} {
		require.Equal(t, []string{"outer pre-forward", "inner pre-forward", "inner post-forward", "outer post-forward",
			"outer pre-backward", "inner pre-backward", "gradient", "inner post-backward", "outer post-backward"},
			step(c))
	}
	remove()
	require.Equal(t, []string{"outer pre-forward", "outer post-forward", "outer pre-backward", "gradient",
		"outer post-backward"}, step(c))
}

// Hooks change no bit of what is computed.
func TestUnitHooksChangeNothing(t *testing.T) {
	run := func(hooks bool) map[string][]byte {
		s := newStack(tensor.CPU(), 2)
		tree := nn.Walk(s)
		if hooks {
			tree.Modules(func(_ string, m nn.Module) { tree.AddHooks(m, recorder(new([]string), "")) })
		}
		c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).WithRandom(1, 0), tree, true)
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, s.Forward(c, samples(c.Ctx, 3)), nil, false)},
				nil, nil)
			return nil
		})
		return gradients(c.Ctx, s)
	}
	require.Equal(t, run(false), run(true))
}

// Transforms of inputs and outputs stand around a module, also around one that runs again for its gradient: they run
// once, in the order of hooks, and their ops belong to the span of the backward hooks.
func TestUnitTransforms(t *testing.T) {
	scale := func(c *nn.Ctx, x *tensor.Tensor, by float64) *tensor.Tensor { return tensor.Affine(c.Ctx, x, by, 0) }
	run := func(recompute, transforms bool) (bits map[string][]byte, log []string) {
		s := newStack(tensor.CPU(), 1)
		root := tensor.NewCtx(tensor.CPU())
		c, m := nn.NewCtx(root.WithRandom(5, 0), nn.Walk(s), true), s.H[0]
		times := func(name string, by float64) func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor {
			return func(c *nn.Ctx, ts []*tensor.Tensor) []*tensor.Tensor {
				require.Equal(t, "h.0", c.Path())
				log = append(log, name)
				return []*tensor.Tensor{scale(c, ts[0], by)}
			}
		}
		var tree *nn.Tree
		if transforms {
			tree = nn.Walk(s)
			c = nn.NewCtx(c.Ctx, tree, true)
			tree.AddHooks(m, recorder(&log, "m"))
			tree.AddHooks(m, &nn.Hooks{Inputs: times("outer input", 2), Outputs: times("outer output", 3)})
			tree.AddHooks(m, &nn.Hooks{Inputs: times("inner input", 5), Outputs: times("inner output", 7)})
			tree.AddHooks(m.Up, &nn.Hooks{PreForward: func(*nn.Ctx) { log = append(log, "forward") }})
		}
		if recompute {
			c = c.WithRecompute(s.units())
		}
		x := samples(root, 3).SetRequiresGrad(true)
		x.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { log = append(log, "gradient of x") })
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			in := x
			if !transforms {
				in = scale(c, scale(c, x, 2), 5)
			}
			y := s.Forward(c, in)
			if !transforms {
				y = scale(c, scale(c, y, 7), 3)
			}
			tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)}, nil, nil)
			return nil
		})
		bits = gradients(root, s)
		bits["x"] = tensor.ReadBytes(root, x.Grad())
		return bits, log
	}
	want, _ := run(false, false)
	for _, recompute := range []bool{false, true} {
		got, log := run(recompute, true)
		require.Equal(t, want, got, "recompute %v", recompute)
		order := []string{"m pre-forward", "outer input", "inner input", "forward", "inner output", "outer output",
			"m post-forward", "m pre-backward"}
		if recompute {
			order = append(order, "forward")
		}
		require.Equal(t, append(order, "gradient of x", "m post-backward"), log)
	}
}

// The passes of micro-batches whose scopes are open side by side may take turns: gradients have the bits, and hooks the
// order, of one micro-batch after the other, with recomputation too.
func TestUnitsInOpenScopes(t *testing.T) {
	type microBatch struct {
		c     *nn.Ctx
		close func(...*tensor.Tensor)
		loss  *tensor.Tensor
	}
	run := func(recompute, turns bool) (bits map[string][]byte, log []string) {
		s, root := newStack(tensor.CPU(), 2), tensor.NewCtx(tensor.CPU())
		tree := nn.Walk(s)
		tree.AddHooks(s.H[1], recorder(&log, "h.1"))
		batches := make([]microBatch, 2)
		forward := func(i int) {
			log = append(log, fmt.Sprint("forward ", i))
			c := nn.NewCtx(root.WithRandom(5, int64(3*i)), tree, true)
			if recompute {
				c = c.WithRecompute(s.units())
			}
			c, end := c.OpenScope()
			y := s.Forward(c, samples(c.Ctx, 3))
			batches[i] = microBatch{c, end, tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)}
		}
		backward := func(i int) {
			log = append(log, fmt.Sprint("backward ", i))
			tensor.Backward(batches[i].c.Ctx, []*tensor.Tensor{batches[i].loss}, nil, nil)
			batches[i].close()
		}
		forward(0)
		if turns {
			forward(1)
			backward(0)
		} else {
			backward(0)
			forward(1)
		}
		backward(1)
		return gradients(root, s), log
	}
	for _, recompute := range []bool{false, true} {
		want, _ := run(recompute, false)
		got, log := run(recompute, true)
		require.Equal(t, want, got)
		pass := []string{"h.1 pre-forward", "h.1 post-forward"}
		back := []string{"h.1 pre-backward", "h.1 post-backward"}
		require.Equal(t, slices.Concat([]string{"forward 0"}, pass, []string{"forward 1"}, pass,
			[]string{"backward 0"}, back, []string{"backward 1"}, back), log)
	}
}

// A panic inside a Unit leaves no memory behind.
func TestUnitPanicFrees(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	s := newStack(dev, 2)
	s.H[1].Down = nn.NewLinear(nn.NewInit(dev, 1), nn.LinearConfig{In: 5, Out: stackWidth})
	c := nn.NewCtx(tensor.NewCtx(dev), nn.Walk(s), true)
	dev.Collect()
	before := dev.MemStats().InUse
	require.Error(t, tensor.Try(func() {
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor { return []*tensor.Tensor{s.Forward(c, samples(c.Ctx, 3))} })
	}))
	require.Equal(t, before, dev.MemStats().InUse)
}

func TestAGraphOutsideOfScopesLivesUntilBackward(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	l := nn.NewLinear(nn.NewInit(tensor.CPU(), 1), nn.LinearConfig{In: 3, Out: 2})
	y := l.Forward(nn.NewCtx(c, nil, true), tensor.Ones(c, tensor.Float32, 4, 3))
	tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, y, nil, false)}, nil, nil)
	require.Equal(t, []float32{4, 4}, tensor.ToSlice[float32](c, l.Bias.Grad()))
}
