// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"strings"

	"github.com/lockstep-ml/lockstep/tensor"
)

// LoRA is what low-rank adapters (Hu et al. 2021, arXiv:2106.09685) add to the product of the linear layer that embeds
// it: for each active one Scale·B(A(dropout(x))). The layer's own parameters keep their names and shapes. Package
// models/lora fills it; that of a layer without adapters is empty.
type LoRA struct {
	A       map[string]*Linear  `nn:"lora_A"`       // [r, in], by the names of adapters
	B       map[string]*Linear  `nn:"lora_B"`       // [out, r]
	Dropout map[string]*Dropout `nn:"lora_dropout"` // of the input; nil: none
	Scale   map[string]float64
	Active  []string // the adapters that are added, in this order, unless the context names others
	Merged  []string // what the weight has been added
}

// Adapters gives programs that make adapters access to those of a layer.
func (a *LoRA) Adapters() *LoRA { return a }

// Adapted reports whether something is added in a context.
func (a *LoRA) Adapted(c *Ctx) bool { return len(a.active(c)) > 0 }

// active are the adapters that a context adds.
func (a *LoRA) active(c *Ctx) (names []string) {
	if len(a.A) == 0 {
		return nil
	}
	if c.adapters == nil {
		return a.Active
	}
	if len(a.Merged) > 0 {
		refuse(c, "nn.LoRA", "the weight has adapter %s merged into it, and the context needs adapters %v: want it "+
			"unmerged first", strings.Join(a.Merged, ", "), *c.adapters)
	}
	for _, name := range *c.adapters {
		if a.A[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

// Adapt is y, the layer's product with x, and what adapters add to it. Under Autocast they compute in its dtype, else
// in their own, and the sum has y's.
func (a *LoRA) Adapt(c *Ctx, x, y *tensor.Tensor) *tensor.Tensor {
	names := a.active(c)
	if len(names) == 0 {
		return y
	}
	sum := y
	for _, name := range names {
		down, up, in := a.A[name], a.B[name], x
		if dt := down.Weight.DType(); c.Lower() == tensor.Invalid && in.DType() != dt {
			in = tensor.Cast(c.Ctx, in, dt)
		}
		if d := a.Dropout[name]; d != nil {
			in = d.Forward(c, in)
		}
		low := down.Forward(c, in)
		if s := a.Scale[name]; s != 1 { // here it has the fewest elements
			low = tensor.Affine(c.Ctx, low, s, 0)
		}
		more := up.Forward(c, low)
		if sum.DType() != more.DType() {
			sum = tensor.Cast(c.Ctx, sum, more.DType())
		}
		sum = tensor.AddOnto(c.Ctx, sum, more)
	}
	if sum.DType() != y.DType() {
		sum = tensor.Cast(c.Ctx, sum, y.DType())
	}
	return sum
}

// WithAdapters returns a context in which layers add the named adapters, as far as they have them, in place of their
// active ones. With no names it is the model without adapters, which preference optimization compares with.
func (c *Ctx) WithAdapters(names ...string) *Ctx {
	d := *c
	d.adapters = &names
	return &d
}

// AdapterOf is the path of the layer to which the module of a path belongs as the A of an adapter, or as its B; ok is
// false of other modules.
func AdapterOf(path string) (layer string, isB, ok bool) {
	for _, factor := range []string{".lora_A.", ".lora_B."} {
		if i := strings.LastIndex(path, factor); i >= 0 {
			return path[:i], factor == ".lora_B.", true
		}
	}
	return "", false, false
}

// Activate is f of x, for a product that is not alone in what f reads: see tensor.LinearActivated.
func Activate(c *Ctx, x *tensor.Tensor, f tensor.Activation) *tensor.Tensor {
	switch f {
	case tensor.ActivationReLU:
		return tensor.ReLU(c.Ctx, x)
	case tensor.ActivationGELU:
		return tensor.GELU(c.Ctx, x)
	case tensor.ActivationGELUTanh:
		return tensor.GELUTanh(c.Ctx, x)
	case tensor.ActivationSiLU:
		return tensor.SiLU(c.Ctx, x)
	}
	return x
}
