// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Init creates the parameters of a new model. The initial value of a parameter depends
// only on the seed and its path, not on the order of construction.
type Init struct {
	c     *tensor.Ctx
	seed  uint64
	path  string
	dtype tensor.DType
}

// NewInit returns an Init that draws float32 parameters on dev from seed.
func NewInit(dev *tensor.Device, seed uint64) *Init {
	return &Init{c: tensor.NewCtx(dev).NoGrad(), seed: seed, dtype: tensor.Float32}
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

// parameter is t once it has its values: models are used by contexts of their own.
func (in *Init) parameter(t *tensor.Tensor) *Parameter {
	in.c.Sync()
	return NewParameter(t)
}

// Full makes a parameter whose elements are all v.
func (in *Init) Full(name string, v float64, shape ...int) *Parameter {
	return in.parameter(tensor.Full(in.c, in.dtype, v, shape...))
}

// Buffer makes a buffer of the given dtype whose elements are all v.
func (in *Init) Buffer(dt tensor.DType, v float64, shape ...int) *Buffer {
	t := tensor.Full(in.c, dt, v, shape...)
	in.c.Sync()
	return NewBuffer(t)
}

// Normal draws from the normal distribution of mean 0 and standard deviation std.
func (in *Init) Normal(name string, std float64, shape ...int) *Parameter {
	return in.parameter(tensor.Normal(in.c, in.dtype, in.key(name), 0, std, shape...))
}

// Uniform draws from [−bound, bound).
func (in *Init) Uniform(name string, bound float64, shape ...int) *Parameter {
	return in.parameter(tensor.Uniform(in.c, in.dtype, in.key(name), -bound, bound, shape...))
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
