// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/internal/hostmemory"
	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Init creates the parameters of a new model. The initial value of a parameter depends
// only on the seed and its path, not on the order of construction. An Init is for one model.
type Init struct {
	c     *tensor.Ctx
	seed  uint64
	path  string
	dtype tensor.DType
	later bool // parameters are made when they are used
	empty bool // parameters get no values
	made  *made
}

// MaxTensors is the number of parameters and buffers that a model may have: so many fit into a safetensors file.
const MaxTensors = 200_000

// made is what an Init and those derived from it have made, and may make.
type made struct {
	tensors, most int
	bytes, limit  uint64
	limited       string // who set the limit
}

// maxBytes bounds a model where the memory is not known, as on a device without values.
const maxBytes = 1 << 50

// NewInit returns an Init that draws float32 parameters on dev from seed. A model of more than MaxTensors
// parameters and buffers, or on the CPU of more bytes than the machine has, is misuse: a panic with a *tensor.Error.
func NewInit(dev *tensor.Device, seed uint64) *Init {
	m := &made{most: MaxTensors, limit: maxBytes, limited: "a model may have"}
	if n, source := hostmemory.Limit(); n > 0 && dev.Name() == "cpu" {
		m.limit, m.limited = n, "the memory of "+source+" holds"
	}
	return &Init{c: tensor.NewCtx(dev).NoGrad(), seed: seed, dtype: tensor.Float32, made: m}
}

// Dry returns an Init with the same limits on a device without values (tensor.NewMeta), to find out the needs of a
// model before making it. It may make at most the given number of parameters and buffers; 0 means as many as in may,
// which is the limit in any case.
func (in *Init) Dry(tensors int) *Init {
	d := NewInit(tensor.NewMeta(), in.seed).As(in.dtype)
	d.made.limit, d.made.limited, d.made.most = in.made.limit, in.made.limited, in.made.most
	if tensors > 0 {
		d.made.most = min(tensors, d.made.most)
	}
	return d
}

// Make makes a model by f, which it calls twice: with a Dry Init, so that a model that is too large is known before
// memory is taken for it, and with in. What Init refuses is an error.
func Make[M any](in *Init, f func(in *Init) M) (m M, err error) {
	if in.c.Device().Name() != "meta" {
		if err := tensor.Try(func() { f(in.Dry(0)) }); err != nil {
			return m, err
		}
	}
	err = tensor.Try(func() { m = f(in) })
	return m, err
}

// take counts a parameter or buffer before it is made.
func (in *Init) take(name string, dt tensor.DType, shape []int) {
	fail := func(format string, args ...any) {
		panic(&tensor.Error{Op: "nn.Init", Msg: fmt.Sprintf(format, args...), Where: join(in.path, name)})
	}
	m := in.made
	if m.tensors++; m.tensors > m.most {
		fail("the model has more than %d parameters and buffers: want at most as many", m.most)
	}
	n := float64(dt.Size())
	for _, size := range shape {
		n *= float64(max(size, 0)) // a negative size is refused where the tensor is made
	}
	if n+float64(m.bytes) > float64(m.limit) {
		fail("shape %v of %v: with it the model has %.4g bytes, %s %.4g",
			shape, dt, n+float64(m.bytes), m.limited, float64(m.limit))
	}
	m.bytes += uint64(n)
}

// Deferred returns an Init whose parameters take no memory until their first use, when they get their initial values;
// only one goroutine may use them first. It is for models that do not fit in memory: a rank of a sharded model fills
// one unit after the other and keeps its shards. Buffers are made immediately. The limit of bytes does not apply.
func (in *Init) Deferred() *Init {
	d, m := *in, *in.made
	m.limit, m.limited = maxBytes, "a model may have"
	d.later, d.made = true, &m
	return &d
}

// Unfilled returns an Init whose parameters have memory but no values, since drawing them takes most of the time of
// making a model. Use it to read saved weights into all of them. Buffers get their values.
func (in *Init) Unfilled() *Init {
	d := *in
	d.empty = true
	return &d
}

// Sub returns the Init of a child module.
func (in *Init) Sub(name string) *Init {
	d := *in
	d.path = join(in.path, name)
	return &d
}

// As returns an Init that makes parameters of another dtype.
func (in *Init) As(dt tensor.DType) *Init {
	d := *in
	d.dtype = dt
	return &d
}

func (in *Init) key(name string) uint64 { return rng.Key(in.seed, join(in.path, name), 0) }

// parameter makes one whose values fill makes.
func (in *Init) parameter(name string, shape []int, fill func(c *tensor.Ctx) *tensor.Tensor) *Parameter {
	in.take(name, in.dtype, shape)
	if in.empty {
		fill = func(c *tensor.Ctx) *tensor.Tensor { return tensor.Empty(c, in.dtype, shape...) }
	}
	if in.later {
		return deferred(in.c, in.dtype, shape, fill)
	}
	t := fill(in.c)
	in.c.Sync() // models are used by other contexts
	return NewParameter(t)
}

// deferred makes a parameter without memory, which fill gives it when it is used.
func deferred(c *tensor.Ctx, dt tensor.DType, shape []int, fill func(c *tensor.Ctx) *tensor.Tensor) *Parameter {
	for _, n := range shape {
		if n <= 0 {
			return NewParameter(tensor.Empty(c, dt, shape...)) // it has no elements
		}
	}
	return NewParameter(tensor.NewDeferred(c.Device(), dt, shape, fill))
}

// Full makes a parameter whose elements are all v.
func (in *Init) Full(name string, v float64, shape ...int) *Parameter {
	return in.parameter(name, shape, func(c *tensor.Ctx) *tensor.Tensor {
		return tensor.Full(c, in.dtype, v, shape...)
	})
}

// Buffer makes a buffer of the given dtype whose elements are all v.
func (in *Init) Buffer(dt tensor.DType, v float64, shape ...int) *Buffer {
	in.take("", dt, shape)
	t := tensor.Full(in.c, dt, v, shape...)
	in.c.Sync()
	return NewBuffer(t)
}

// Normal draws from the normal distribution of mean 0 and standard deviation std.
func (in *Init) Normal(name string, std float64, shape ...int) *Parameter {
	return in.parameter(name, shape, func(c *tensor.Ctx) *tensor.Tensor {
		return tensor.Normal(c, in.dtype, in.key(name), 0, std, shape...)
	})
}

// Uniform draws from [−bound, bound).
func (in *Init) Uniform(name string, bound float64, shape ...int) *Parameter {
	return in.parameter(name, shape, func(c *tensor.Ctx) *tensor.Tensor {
		return tensor.Uniform(c, in.dtype, in.key(name), -bound, bound, shape...)
	})
}

// XavierUniform draws from ±√(6/(fanIn+fanOut)) for a weight [fanOut, fanIn] (Glorot &
// Bengio 2010).
func (in *Init) XavierUniform(name string, fanOut, fanIn int) *Parameter {
	return in.Uniform(name, math.Sqrt(6/float64(fanIn+fanOut)), fanOut, fanIn)
}

// XavierNormal draws with standard deviation √(2/(fanIn+fanOut)).
func (in *Init) XavierNormal(name string, fanOut, fanIn int) *Parameter {
	return in.Normal(name, math.Sqrt(2/float64(fanIn+fanOut)), fanOut, fanIn)
}

// KaimingUniform draws from ±1/√fanIn for a weight [fanOut, fanIn], the initialisation of
// torch.nn.Linear (He et al. 2015 with a = √5).
func (in *Init) KaimingUniform(name string, fanOut, fanIn int) *Parameter {
	return in.Uniform(name, 1/math.Sqrt(float64(fanIn)), fanOut, fanIn)
}

// KaimingNormal draws with standard deviation √(2/fanIn), for layers that feed a ReLU.
func (in *Init) KaimingNormal(name string, fanOut, fanIn int) *Parameter {
	return in.Normal(name, math.Sqrt(2/float64(fanIn)), fanOut, fanIn)
}
