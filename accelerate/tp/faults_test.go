// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestParsePlanNamesItsFaults(t *testing.T) {
	plan, err := tp.ParsePlan(map[string]string{"a": "colwise", "b": "packed_colwise", "c": "packed_colwise:3"})
	require.NoError(t, err)
	require.Equal(t, tp.Plan{"a": {Style: tp.Colwise}, "b": {Style: tp.PackedColwise},
		"c": {Style: tp.PackedColwise, Fused: 3}}, plan)

	_, err = tp.ParsePlan(map[string]string{"a": "colwize", "b": "moe_tp_experts", "c": "colwise:2", "d": "column"})
	require.EqualError(t, err, strings.Join([]string{"tp: 4 faults:",
		`a: unknown style "colwize": did you mean colwise?`,
		`b: style "moe_tp_experts" is not built: want one of colwise, rowwise, packed_colwise, ` +
			`colwise_gather_output, rowwise_split_input, embedding_rowwise, sequence_parallel, ` +
			`replicated_with_grad_allreduce, replicate`,
		`c: style "colwise:2": want a number of at least 2 behind packed_colwise alone`,
		`d: unknown style "column": want one of colwise, rowwise, packed_colwise, colwise_gather_output, ` +
			`rowwise_split_input, embedding_rowwise, sequence_parallel, replicated_with_grad_allreduce, ` +
			`replicate`}, "\n  - "))
}

// resolve divides a GPT-2 of so many heads on paper, by its plan with changes.
func resolve(t *testing.T, heads int, size tp.Size, changes map[string]string) ([]tp.Cut, error) {
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 11, 7, 4*heads, 3, heads
	m, err := gpt2.New(nn.NewInit(tensor.NewMeta(), 1), cfg)
	require.NoError(t, err)
	text := m.TPPlan()
	for path, style := range changes {
		if text[path] = style; style == "" {
			delete(text, path)
		}
	}
	plan, err := tp.ParsePlan(text)
	require.NoError(t, err)
	return plan.Resolve(nn.Walk(m), size)
}

func TestPlansFitTheModel(t *testing.T) {
	cuts, err := resolve(t, 8, tp.Size{Ranks: 2, Parts: 4}, nil)
	require.NoError(t, err)
	require.Len(t, cuts, 1+3*6)
	require.Equal(t, "transformer.wte.weight[6:11,0:32][0:160]", cuts[0].Of(1, 2).String(), "the last part is shorter")
	cuts = cuts[1:]
	require.Equal(t, tp.Cut{Name: "transformer.h.0.attn.c_attn.weight", Shape: []int{32, 96}, Dim: 1, Fused: 3,
		Parts: 4}, cuts[0])
	require.Equal(t, "transformer.h.0.attn.c_attn.weight[0:32,16:32+48:64+80:96][0:1536]", cuts[0].Of(1, 2).String())
	require.Equal(t, "transformer.h.0.attn.c_attn.bias[0:16+32:48+64:80][0:48]", cuts[1].Of(0, 2).String())
	require.Equal(t, "transformer.h.0.attn.c_proj.weight[24:32,0:32][0:256]", cuts[2].Of(3, 4).String())

	for _, c := range []struct {
		heads   int
		size    tp.Size
		changes map[string]string
		want    []string
	}{
		{9, tp.Size{Ranks: 2, Parts: 2}, nil, []string{
			"tp: transformer.h.0.attn.c_attn has 9 heads, transformer.h.0.attn.c_proj 9 heads: they do not divide " +
				"into 2 parts: want tp_parts among 1, 3, 9, and a tp_size that divides it"}},
		{8, tp.Size{Ranks: 2, Parts: 6}, nil, []string{
			"tp: tp_parts 6 on 2 ranks: want tp_parts 2, or 2 times 2, 4, 8, …"}},
		{8, tp.Size{Ranks: 1, Parts: 6}, nil, []string{"tp: transformer.h.0.attn.c_attn has 8 heads, " +
			"transformer.h.0.attn.c_proj 8 heads, transformer.h.0.mlp.c_fc 128 features, transformer.h.0.mlp.c_proj " +
			"128 features: they do not divide into 6 parts: want tp_parts among 1, 2, 4, 8, and"}},
		{8, tp.Size{Ranks: 4, Parts: 2}, nil, []string{"tp: tp_parts 2 on 4 ranks"}},
		{8, tp.Size{Ranks: 2, Parts: 2}, map[string]string{"transformer.wte": "", "transformer.h.*.mlp.fc": "rowwise"},
			[]string{`  - the plan has no rule for transformer.wte, which has a matrix: want one, such as ` +
				`"transformer.wte": "replicate"`,
				`  - rule "transformer.h.*.mlp.fc" of the plan matches no module: want one of transformer.wte, ` +
					`transformer.wpe, transformer.h.*.attn.c_attn, transformer.h.*.attn.c_proj`}},
		{8, tp.Size{Ranks: 2, Parts: 2}, map[string]string{"transformer.wte": "colwise", "transformer.ln_f": "rowwise",
			"transformer.h.*.ln_1": "colwise"},
			[]string{"  - transformer.wte is colwise, and transformer.wte.weight is tied to another module: want " +
				"embedding_rowwise, colwise_gather_output or replicate",
				"  - transformer.ln_f is rowwise, and has no matrix: want a linear layer",
				"  - transformer.h.0.ln_1 is colwise, and has no matrix"}},
		{8, tp.Size{Ranks: 2, Parts: 2}, map[string]string{"transformer.wte": "replicate"},
			[]string{"tp: transformer.wte.weight is shared by transformer.wte (replicate) and lm_head " +
				"(colwise_gather_output): want it divided for both (embedding_rowwise, colwise_gather_output), " +
				"or for none"}},
		{8, tp.Size{Ranks: 2, Parts: 2}, map[string]string{"transformer.h.1.mlp.c_fc": "colwise"},
			[]string{"tp: rules transformer.h.*.mlp.c_fc and transformer.h.1.mlp.c_fc match " +
				"transformer.h.1.mlp.c_fc: want one"}},
		{8, tp.Size{Ranks: 2, Parts: 2}, map[string]string{"transformer.h.*.attn.c_proj": "sequence_parallel"},
			[]string{"c_proj is sequence_parallel: want a layer without matrices, such as a norm, or replicate"}},
		{7, tp.Size{Ranks: 7, Parts: 7}, map[string]string{"transformer.h.*.attn.c_attn": "packed_colwise:5"},
			[]string{"transformer.wte has 11 features: they do not divide into 7 parts: want tp_parts among 1, and",
				"its 84 features are not 5 matrices of equal size"}},
	} {
		_, err := resolve(t, c.heads, c.size, c.changes)
		for _, want := range c.want {
			require.ErrorContains(t, err, want)
		}
		require.Len(t, err.(tp.Faults).Unwrap(), len(c.want), "%v", err)
	}
	cuts, err = resolve(t, 9, tp.Size{Ranks: 3, Parts: 3}, map[string]string{"transformer.h.*.mlp.c_fc": "replicate",
		"transformer.h.*.mlp.c_proj": "replicate"})
	require.NoError(t, err)
	require.Len(t, cuts, 1+3*3, "three ranks share nine heads")
}

// Nothing is changed if a model cannot be divided.
func TestFaultyPlanLeavesTheModel(t *testing.T) {
	c, m := tensor.NewCtx(tensor.CPU()), newLlama(8, 4)
	plan, err := tp.ParsePlan(llamaPlan)
	require.NoError(t, err)
	faulty := maps.Clone(plan)
	faulty["nothing"] = tp.Rule{Style: tp.Rowwise}
	_, err = tp.Divide(c, m, tp.Config{Plan: faulty, Parts: 2})
	require.ErrorContains(t, err, `rule "nothing" of the plan matches no module`)
	_, err = tp.Divide(c, newLlama(8, 2), tp.Config{Plan: plan, Parts: 4})
	require.ErrorContains(t, err,
		"tp: attn.k_proj has 2 heads, attn.v_proj 2 heads: they do not divide into 4 parts: want tp_parts among 1, 2")
	d, err := tp.Divide(c, m, tp.Config{Plan: plan, Parts: 1})
	require.NoError(t, err)
	x := tensor.Ones(c, tensor.Float32, 1, 3, 8)
	require.Equal(t, tensor.ReadBytes(c, m.Forward(nn.NewCtx(c, nil, true), x)),
		tensor.ReadBytes(c, m.Forward(nn.NewCtx(c, d.Tree(), true), x)), "one part is the model as it is")
}

// A rank that is lost in a sum ends the others, whose error has the layer and the cause.
func TestLostRankInASum(t *testing.T) {
	lost := errors.New("out of memory")
	var seen error
	err := local.Run(2, comm.Options{}, func(g *comm.Group) error {
		c, m := tensor.NewCtx(tensor.CPU()), newLlama(8, 4)
		plan, err := tp.ParsePlan(llamaPlan)
		if err != nil {
			return err
		}
		d, err := tp.Divide(c, m, tp.Config{Group: g, Plan: plan, Parts: 2})
		if err != nil {
			return err
		}
		x := tensor.Ones(c, tensor.Float32, 1, 3, 8)
		nc := nn.NewCtx(c, d.Tree(), true)
		if g.Rank() == 1 {
			d.Tree().AddHooks(m.Down, &nn.Hooks{PreForward: func(*nn.Ctx) { panic(lost) }})
			defer func() { _ = recover() }()
			defer g.Abort(lost)
			m.Forward(nc, x)
		}
		seen = tensor.Try(func() { m.Forward(nc, x) })
		return seen
	})
	require.Error(t, err)
	require.ErrorContains(t, seen, "tp.Sum: down: ")
	require.ErrorContains(t, seen, "rank 1")
	require.ErrorContains(t, seen, "out of memory")
	var of *comm.AbortError
	require.ErrorAs(t, seen, &of)
	require.Equal(t, 1, of.Rank)
	require.NotErrorIs(t, seen, context.Canceled)
}

// A rank that is lost while others compute beside a sum of a backward pass ends them when they wait for it. The error
// has the layer, and what the sum held comes back.
func TestLostRankBesideASum(t *testing.T) {
	lost := errors.New("out of memory")
	for name, on := range map[string]onRanks{"goroutines": local.Run, "shm": commtest.Connected(t, shm.New),
		"tcp": commtest.Connected(t, tcp.New)} {
		var seen error
		err := on(2, comm.Options{}, func(g *comm.Group) error {
			dev := tensor.NewCPU(1)
			defer dev.Close()
			c, m := tensor.NewCtx(dev), nn.NewLinear(nn.NewInit(dev, 1), nn.LinearConfig{In: 512, Out: 1024})
			d, err := tp.Divide(c, &layerOf{m}, tp.Config{Group: g, Plan: tp.Plan{"up": {Style: tp.Colwise}}, Parts: 2})
			if err != nil {
				return err
			}
			if g.Rank() == 1 {
				d.Tree().AddHooks(m, &nn.Hooks{PreBackward: func(*tensor.Ctx) { panic(lost) }})
			}
			x, products := tensor.Ones(c, tensor.Float32, 256, 512).SetRequiresGrad(true), 0
			before := dev.MemStats().InUse
			fault := tensor.Recover(func() {
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					y := m.Forward(nn.NewCtx(c, d.Tree(), true), x)
					defer c.Trace(t.Context(), func(k tensor.KernelSpan) {
						if k.FLOPs > 0 {
							products++
						}
					})()
					dy := tensor.Ones(c.NoGrad(), tensor.Float32, y.Shape()...)
					tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{dy}, []*tensor.Tensor{x, m.Weight.Tensor})
					return nil
				})
			})
			if g.Rank() == 1 {
				g.Abort(lost)
				return lost
			}
			seen = fault
			assert.Equal(t, 2, products, "the gradients of inputs and weight")
			assert.Equal(t, before, dev.MemStats().InUse, name)
			runtime.KeepAlive([]any{x, m})
			return fault
		})
		require.Error(t, err)
		require.ErrorContains(t, seen, "tp.Sum: up: ", name)
		require.ErrorContains(t, seen, "rank 1", name)
		require.ErrorContains(t, seen, "out of memory", name)
	}
}

// layerOf is a model of one layer.
type layerOf struct {
	Up *nn.Linear `nn:"up"`
}
