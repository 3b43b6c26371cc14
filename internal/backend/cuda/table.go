// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// launcher queues the kernels of one op. The operands were checked: they are live buffers of this device, no view
// leaves its buffer, numbers of operands are at least those that op.go needs, and the op has kernels for the call's
// dtype.
type launcher func(s *stream, c *backend.Call)

// row is an op of the table: how it is launched, and the dtypes that it has kernels for.
type row struct {
	launch launcher
	dtypes []dtype.DType
}

// table is all ops; each family of kernels has a file with its part.
var table [backend.NumOps]row

// The dtypes of ops.
var (
	halfTypes = []dtype.DType{dtype.BFloat16, dtype.Float16}
	floats    = append([]dtype.DType{dtype.Float32, dtype.Float64}, halfTypes...)
	signed    = append([]dtype.DType{dtype.Int32, dtype.Int64}, floats...)
	numbers   = append([]dtype.DType{dtype.Uint8}, signed...)
	anyType   = append([]dtype.DType{dtype.Bool}, numbers...)
	bools     = []dtype.DType{dtype.Bool}
)

// supports reports whether an op has kernels for a dtype.
func supports(op backend.Op, dt dtype.DType) bool {
	return op < backend.NumOps && slices.Contains(table[op].dtypes, dt)
}

func init() {
	for _, family := range []map[backend.Op]row{
		elementwiseOps, moveOps, reductionOps, scanOps, randomOps, optimizerOps, productOps, attentionOps, imageOps,
		indexingOps, rowOps,
	} {
		for op, r := range family {
			if table[op].launch != nil {
				panic("cuda: two launchers of " + op.String())
			}
			table[op] = r
		}
	}
}
