// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// RoPE makes the tables of rotary position embeddings (Su et al., "RoFormer", 2021) as transformers' LLaMA has them:
// elements r and Dim/2+r of a head are a pair. A model makes them once for all its attentions.
type RoPE struct {
	Dim   int     // elements of a head that are rotated, an even number; the rest stays unchanged
	Theta float64 // base of the wavelengths; 0: 10,000
	// Frequencies are the Dim/2 angles, in radians, by which a position differs from the one before; nil: those of
	// Theta.
	Frequencies []float64
	Scale       float64 // of cosines and sines; 0: 1
}

// Tables are the cosines and sines of the angles, Float32 [T,Dim/2] for positions [T], and [B,T,Dim/2] for [B,T].
func (r RoPE) Tables(c *Ctx, positions *tensor.Tensor) (cos, sin *tensor.Tensor) {
	if r.Dim < 2 || r.Dim%2 != 0 {
		refuse(c, "nn.RoPE", "Dim is %d: want an even number of elements", r.Dim)
	}
	if r.Frequencies != nil && len(r.Frequencies) != r.Dim/2 {
		refuse(c, "nn.RoPE", "%d frequencies for %d elements: want one for two", len(r.Frequencies), r.Dim)
	}
	frequencies := make([]float32, r.Dim/2)
	for i := range frequencies {
		if r.Frequencies != nil {
			frequencies[i] = float32(r.Frequencies[i])
		} else {
			frequencies[i] = float32(math.Pow(or(r.Theta, 10_000), -2*float64(i)/float64(r.Dim)))
		}
	}
	at := tensor.Unsqueeze(c.Ctx, tensor.Cast(c.Ctx, positions, tensor.Float32), -1)
	angles := tensor.Mul(c.Ctx, at, tensor.FromSlice(c.Ctx, frequencies, len(frequencies)))
	cos, sin = tensor.Cos(c.Ctx, angles), tensor.Sin(c.Ctx, angles)
	if r.Scale != 0 && r.Scale != 1 {
		cos, sin = tensor.Affine(c.Ctx, cos, r.Scale, 0), tensor.Affine(c.Ctx, sin, r.Scale, 0)
	}
	return cos, sin
}

// rotate turns the heads x by the tables of in.
func rotate(c *Ctx, x *tensor.Tensor, in AttentionInput) *tensor.Tensor {
	cos, sin := in.Cos, in.Sin
	if x.DType() == tensor.Float64 {
		cos, sin = tensor.Cast(c.Ctx, cos, tensor.Float64), tensor.Cast(c.Ctx, sin, tensor.Float64)
	}
	return tensor.RoPE(c.Ctx, x, cos, sin)
}
