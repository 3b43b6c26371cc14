// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

var defaultMuon = register("muon", Muon{})

// Muon moves a matrix by the orthogonal factor of a mean of its gradients (Jordan et al. 2024, "Muon: An optimizer for
// hidden layers in neural networks"), as torch.optim.Muon. AdamW updates all that is no matrix, and embeddings. Decay
// is decoupled.
type Muon struct {
	Beta1    float64 `json:"adam_beta1"` // of AdamW, as the next two
	Beta2    float64 `json:"adam_beta2"`
	Eps      float64 `json:"adam_epsilon"`
	Momentum float64 `json:"muon_momentum"`
	Nesterov bool    `json:"nesterov"`
	// Steps is the number of Newton-Schulz iterations.
	Steps int64 `json:"ns_steps"`
	// AdjustLR scales the update of a matrix of R rows and C columns: "match_rms_adamw" by 0.2·√max(R, C), so that the
	// learning rate of AdamW fits (Liu et al. 2025, "Muon is Scalable for LLM Training"), "original" by √max(1, R/C).
	AdjustLR string `json:"adjust_lr_fn"`
}

// DefaultMuon has the defaults of torch.optim.Muon and AdamW, except for the AdjustLR match_rms_adamw.
func DefaultMuon() Muon { return defaultMuon }

// New makes the optimizer over groups.
func (o Muon) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	by := &scaleByMuon{Muon: o, embeddings: map[string]bool{}}
	for _, g := range groups {
		for _, name := range g.Embeddings {
			by.embeddings[name] = true
		}
	}
	return New(c, "muon", groups, DecoupledDecay{}, by)
}

// scaleByMuon replaces the update of a matrix by Muon's, others by Adam's.
type scaleByMuon struct {
	Muon
	embeddings map[string]bool
}

func (o *scaleByMuon) adam() ScaleByAdam { return ScaleByAdam{o.Beta1, o.Beta2, o.Eps} }

func (o *scaleByMuon) hidden(p tensor.Named) bool {
	return len(p.Shape()) == 2 && !o.embeddings[p.Name]
}

// Traits: products are those of whole matrices.
func (*scaleByMuon) Traits() Traits { return Traits{OnDevice: true} }

// State is the momentum of a matrix, and the moments of others.
func (o *scaleByMuon) State(p tensor.Named) []StateTensor {
	if o.hidden(p) {
		return Like(p, "momentum_buffer")
	}
	return o.adam().State(p)
}

// Apply replaces the update.
func (o *scaleByMuon) Apply(c *tensor.Ctx, p tensor.Named, g *Group, s *Slot, u *tensor.Tensor) {
	if !o.hidden(p) {
		o.adam().Apply(c, p, g, s, u)
		return
	}
	if u.Numel() == 0 {
		return
	}
	m := s.Tensors["momentum_buffer"]
	tensor.AxpbyInto(c, m, o.Momentum, m, 1-o.Momentum, u)
	if o.Nesterov {
		tensor.AxpbyInto(c, u, 1-o.Momentum, u, o.Momentum, m)
	} else {
		tensor.CopyInto(c, u, m)
	}
	tensor.CopyInto(c, u, o.orthogonal(c, u))
	rows, columns := float64(u.Shape()[0]), float64(u.Shape()[1])
	ratio := math.Sqrt(max(1, rows/columns))
	if o.AdjustLR != "original" {
		ratio = 0.2 * math.Sqrt(max(rows, columns))
	}
	tensor.ScaleInto(c, u, ratio)
}

// newtonSchulz are the coefficients of the polynomial a·x + b·x³ + c·x⁵, whose slope at 0 is large.
var newtonSchulz = [3]float64{3.4445, -4.7750, 2.0315}

// orthogonal is about U·Vᵀ of x = U·S·Vᵀ: the iteration brings each singular value to between 0.5 and 1.5.
func (o *scaleByMuon) orthogonal(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
	tall := x.Shape()[0] > x.Shape()[1]
	if tall {
		x = tensor.Transpose(c, x, 0, 1)
	}
	x = tensor.Clone(c, x)
	divideBy(c, x, tensor.Clamp(c, norm(c, x), 1e-7, math.Inf(1)))
	for range o.Steps {
		gram := tensor.MatMul(c, x, tensor.Transpose(c, x, 0, 1))
		poly := tensor.MatMul(c, gram, gram)
		tensor.AxpbyInto(c, poly, newtonSchulz[1], gram, newtonSchulz[2], poly)
		next := tensor.MatMul(c, poly, x)
		tensor.AxpbyInto(c, next, newtonSchulz[0], x, 1, next)
		x = next
	}
	if tall {
		x = tensor.Transpose(c, x, 0, 1)
	}
	return x
}
