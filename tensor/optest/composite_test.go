// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
)

// without is a backend that lacks kernels.
type without struct {
	backend.Backend
	ops []backend.Op
}

func (b without) Supports(op backend.Op, dt dtype.DType) bool {
	return !slices.Contains(b.ops, op) && b.Backend.Supports(op, dt)
}

// NewStream returns a stream on which a kernel that is lacking is a fault.
func (b without) NewStream() backend.Stream { return refusing{b.Backend.NewStream(), b} }

type refusing struct {
	backend.Stream
	b without
}

func (s refusing) Launch(k *backend.Call) {
	if slices.Contains(s.b.ops, k.Op) {
		panic(&backend.Fault{Backend: s.b.Name(), Op: k.Op, Msg: "no kernel"})
	}
	s.Stream.Launch(k)
}

// composable are the kernels that a backend need not have, by the op of the table that launches them.
var composable = map[string][]backend.Op{
	"GELU": {backend.OpGELU, backend.OpGELUGrad}, "GELUTanh": {backend.OpGELUTanh, backend.OpGELUTanhGrad},
	"SiLU": {backend.OpSiLU, backend.OpSiLUGrad}, "SwiGLU": {backend.OpSwiGLU, backend.OpSwiGLUGrad},
	"Softmax":    {backend.OpSoftmax, backend.OpSoftmaxGrad},
	"LogSoftmax": {backend.OpLogSoftmax, backend.OpLogSoftmaxGrad},
	"LayerNorm":  {backend.OpLayerNorm, backend.OpLayerNormGrad},
	"RMSNorm":    {backend.OpRMSNorm, backend.OpRMSNormGrad},
	"Attention":  {backend.OpAttention, backend.OpAttentionGrad},
	"Linear":     {backend.OpLinear}, "AdamW": {backend.OpAdamW},
}

// The table holds on a device that lacks a kernel, for each kernel in turn, and for all together.
func TestComposites(t *testing.T) {
	var all []backend.Op
	for name, ops := range composable {
		all = append(all, ops...)
		if testing.Short() {
			continue // all of them together are enough for the race detector
		}
		t.Run(name, func(t *testing.T) {
			for _, op := range ops {
				dev := closed(t, joint.Device[*tensor.Device](without{deferred.New(1), []backend.Op{op}}))
				row(t, dev, name)
				require.Positive(t, dev.Composed()[op.String()], "%s was not composed", op)
				require.Len(t, dev.Composed(), 1)
			}
		})
	}
	dev := closed(t,
		joint.Device[*tensor.Device](without{deferred.New(1),
			append(all, backend.OpLayerNormParamGrad, backend.OpRMSNormParamGrad)}))
	for name := range composable {
		row(t, dev, name)
	}
	require.Greater(t, len(dev.Composed()), len(all)-1)
	require.Empty(t, openCPU(t, 1).Composed())
}

// row is Run for one op of the table.
func row(t *testing.T, dev *tensor.Device, name string) {
	t.Helper()
	r := runner{dev: dev, c: tensor.NewCtx(dev)}
	at := slices.IndexFunc(Table(), func(op Op) bool { return op.Name == name })
	require.GreaterOrEqual(t, at, 0, "no row %s", name)
	op := Table()[at]
	r.oracles(t, op)
	r.gradients(t, op)
	r.layouts(t, op)
	r.dtypes(t, op)
	r.misuse(t, op)
}
