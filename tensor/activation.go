// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/backend"

// Activation is an elementwise function that follows a linear layer. LinearActivated and
// AddMMActivated compute it in the same pass as the layer.
type Activation uint8

// The activations; each is the function of its name.
const (
	ActivationNone Activation = iota
	ActivationReLU
	ActivationGELU
	ActivationGELUTanh
	ActivationSiLU
)

// activations are the kernels of each Activation and what its gradient reads.
var activations = [...]struct {
	op   backend.Op
	grad unaryGrad
	both bool // the gradient's kernel can compute the function once more beside it
}{
	ActivationNone:     {},
	ActivationReLU:     {backend.OpReLU, unaryGrad{backend.OpReLUGrad, true}, false},
	ActivationGELU:     {backend.OpGELU, unaryGrad{backend.OpGELUGrad, false}, false},
	ActivationGELUTanh: {backend.OpGELUTanh, unaryGrad{backend.OpGELUTanhGrad, false}, true},
	ActivationSiLU:     {backend.OpSiLU, unaryGrad{backend.OpSiLUGrad, false}, false},
}
