// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// EmbeddingNoise is NEFTune's noise on the embeddings of tokens (Jain et al. 2023): in training each element of the
// results [B,T,C] of an Embedding gets a draw from U(−1, 1)·Alpha/√(T·C).
type EmbeddingNoise struct {
	Of    *Embedding
	Alpha float64
	// Key is that of the random stream of a sample of the batch, counted from 0: see tensor.Uniform.
	Key func(sample int) uint64
}

// WithEmbeddingNoise returns a context in which an Embedding adds noise to its results in training.
func (c *Ctx) WithEmbeddingNoise(n *EmbeddingNoise) *Ctx {
	d := *c
	d.noise = n
	return &d
}

// disturbed is y with the noise of the context, if it is e's and c trains.
func (e *Embedding) disturbed(c *Ctx, y *tensor.Tensor) *tensor.Tensor {
	n := c.noise
	if n == nil || n.Of != e || !c.Training || y.Numel() == 0 {
		return y
	}
	if y.Dim() != 3 {
		refuse(c, "nn.Embedding", "noise on embeddings of shape %v: want [B T C]", y.Shape())
	}
	length, width := y.Size(1), y.Size(2)
	bound := n.Alpha / math.Sqrt(float64(length)*float64(width))
	samples := make([]*tensor.Tensor, y.Size(0))
	for i := range samples {
		samples[i] = tensor.Uniform(c.Ctx.NoGrad(), tensor.Float32, n.Key(i), -bound, bound, 1, length, width)
	}
	noise := tensor.Cast(c.Ctx.NoGrad(), tensor.Concat(c.Ctx.NoGrad(), 0, samples...), y.DType())
	return tensor.Add(c.Ctx, y, noise)
}
