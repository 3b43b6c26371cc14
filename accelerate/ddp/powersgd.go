// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"maps"
	"math"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/tensor"
)

func init() { register("power_sgd", DefaultPowerSGD) }

// PowerSGD are the settings of the hook power_sgd (Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank
// Gradient Compression for Distributed Optimization", 2019), with the names and defaults of PyTorch's PowerSGDState.
// The gradient of a parameter with two dims or more is a matrix M, its first dim by the rest, and travels as P·Qᵀ
// with few columns: P = M·Q is summed and made orthonormal, Q = Mᵀ·P is summed. Other parameters are summed as they
// are.
//
// The state belongs to parameters and not to buckets, so that StartIter may be less than 2 and a resumed run has the
// same bits. A parameter that a rank does not use sends what is owed to it; if no rank uses it, that is lost.
type PowerSGD struct {
	// Rank is the number of columns of P and Q, at most: matrix_approximation_rank.
	Rank int `json:"matrix_approximation_rank"`
	// StartIter is the number of steps at first that are summed as they are.
	StartIter int64 `json:"start_powerSGD_iter"`
	// MinRate is by which factor P and Q must be smaller than the matrix; one on which they save less is summed as is.
	MinRate float64 `json:"min_compression_rate"`
	// ErrorFeedback adds what a step's approximation lacks to the next gradient.
	ErrorFeedback bool `json:"use_error_feedback"`
	// WarmStart begins with the Q of the step before instead of random numbers.
	WarmStart bool `json:"warm_start"`
	// Seed is that of the random numbers.
	Seed uint64 `json:"random_seed"`
}

// DefaultPowerSGD are PyTorch's defaults.
func DefaultPowerSGD() PowerSGD {
	return PowerSGD{Rank: 1, StartIter: 1000, MinRate: 2, ErrorFeedback: true, WarmStart: true}
}

// New makes the hook.
func (c PowerSGD) New() Hook {
	return &powerSGD{lossy: "power_sgd", PowerSGD: c, memory: memory{off: !c.ErrorFeedback}, q: map[string][]float32{}}
}

type powerSGD struct {
	lossy
	PowerSGD
	memory
	steps int64                // begun
	q     map[string][]float32 // of each parameter, from the last step
}

func (h *powerSGD) State() HookState { return HookState{h.steps, h.errors, h.q} }

func (h *powerSGD) SetState(s HookState) {
	h.steps, h.errors, h.q = s.Steps, maps.Clone(s.Own), maps.Clone(s.Shared)
	if h.q == nil {
		h.q = map[string][]float32{}
	}
}

// matrix is a gradient that is approximated.
type matrix struct {
	Part
	n, m, r int
	x       []float32 // the gradient and what is owed to it, n × m
	p, q    []float32 // n × r and m × r
}

// Begin sums, in one call, the gradients that stay unchanged and the Ps; wait sums the Qs.
func (h *powerSGD) Begin(g *comm.Group, b Bucket) func(context.Context) error {
	if b.Index == 0 {
		h.steps++
	}
	if h.steps <= h.StartIter || b.Grads.DType() != tensor.Float32 || b.Grads.Numel() == 0 {
		return AllReduce.Begin(g, b)
	}
	var raw []Part
	var matrices []*matrix
	var send []float32
	for _, p := range b.Parts {
		if m := h.matrix(p); m != nil {
			matrices = append(matrices, m)
			continue
		}
		raw = append(raw, p)
		send = append(send, values(b.Ctx, p)...)
	}
	for _, m := range matrices {
		m.x = h.take(b.Ctx, m.Part)
		m.q = h.start(m)
		m.p = product(b.Ctx, m.x, m.n, m.m, false, m.q, m.r)
		send = append(send, m.p...)
	}
	first := g.AllReduce(comm.Of(send), comm.Sum, comm.Label(b.Label), comm.Layout(b.Layout))
	return func(ctx context.Context) error {
		if err := first.Wait(ctx); err != nil {
			return err
		}
		return h.finish(ctx, g, b, raw, matrices, send)
	}
}

// matrix is the part as a matrix, nil if it is not approximated.
func (h *powerSGD) matrix(p Part) *matrix {
	shape, size := p.Grads.Shape(), p.Grads.Numel()
	if len(shape) < 2 || size == 0 {
		return nil
	}
	m := &matrix{Part: p, n: shape[0], m: size / shape[0]}
	m.r = min(h.Rank, m.n, m.m)
	if float64((m.n+m.m)*m.r)*h.MinRate >= float64(size) {
		return nil
	}
	return m
}

// start is the Q that a step begins with, its columns orthonormal.
func (h *powerSGD) start(m *matrix) []float32 {
	q := make([]float32, m.m*m.r)
	if old := h.q[m.Name]; h.WarmStart && len(old) == len(q) {
		copy(q, old)
	} else {
		rng.FillNormal32(q, rng.Derive(h.Seed, "power_sgd/"+m.Name, 0), uint64(h.steps), 0)
	}
	orthonormalize(q, m.r)
	return q
}

// finish makes the sums of a bucket from those of the first call.
func (h *powerSGD) finish(ctx context.Context, g *comm.Group, b Bucket, raw []Part, matrices []*matrix,
	sum []float32) error {
	for _, p := range raw {
		n := p.Grads.Numel()
		write(b.Ctx, p, sum[:n])
		sum = sum[n:]
	}
	if len(matrices) == 0 {
		return nil
	}
	var send []float32
	for _, m := range matrices {
		m.p, sum = sum[:len(m.p)], sum[len(m.p):]
		orthonormalize(m.p, m.r)
		send = append(send, product(b.Ctx, m.x, m.n, m.m, true, m.p, m.r)...)
	}
	if err := g.AllReduce(comm.Of(send), comm.Sum, comm.Label(b.Label), comm.Layout(b.Layout)).Wait(ctx); err != nil {
		return err
	}
	for _, m := range matrices {
		m.q, send = send[:len(m.q):len(m.q)], send[len(m.q):]
		h.expand(b.Ctx, m, g.Size())
	}
	return nil
}

// expand writes P·Qᵀ, and keeps what it lacks.
func (h *powerSGD) expand(c *tensor.Ctx, m *matrix, ranks int) {
	var y []float32
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		q := tensor.Transpose(c, tensor.FromSlice(c, m.q, m.m, m.r), 0, 1)
		z := tensor.MatMul(c, tensor.FromSlice(c, m.p, m.n, m.r), q)
		y = tensor.ToSlice[float32](c, z)
		return nil
	})
	write(c, m.Part, y)
	ok := finite(y)
	if ok && h.WarmStart {
		h.q[m.Name] = append([]float32(nil), m.q...)
	}
	for i, v := range y {
		m.x[i] -= v / float32(ranks)
	}
	h.keep(m.Name, m.x, ok)
}

// product is the n × m matrix x, or its transpose, times y, which has r columns.
func product(c *tensor.Ctx, x []float32, n, m int, transposed bool, y []float32, r int) (z []float32) {
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		a := tensor.FromSlice(c, x, n, m)
		if transposed {
			a = tensor.Transpose(c, a, 0, 1)
		}
		z = tensor.ToSlice[float32](c, tensor.MatMul(c, a, tensor.FromSlice(c, y, len(y)/r, r)))
		return nil
	})
	return z
}

// orthonormalize makes the r columns of a matrix orthonormal by Gram and Schmidt's method, each column twice, with sums
// in float64. A column of zeros stays one.
func orthonormalize(x []float32, r int) {
	n := len(x) / r
	cols := make([][]float64, r)
	for j := range cols {
		col := make([]float64, n)
		for i := range col {
			col[i] = float64(x[i*r+j])
		}
		for range 2 {
			for _, before := range cols[:j] {
				d := dot(before, col)
				for i, v := range before {
					col[i] -= float64(d * v)
				}
			}
		}
		if norm := math.Sqrt(dot(col, col)); norm != 0 {
			for i := range col {
				col[i] /= norm
			}
		}
		cols[j] = col
		for i, v := range col {
			x[i*r+j] = float32(v)
		}
	}
}

func dot(x, y []float64) (sum float64) {
	for i, v := range x {
		sum += float64(v * y[i])
	}
	return sum
}
