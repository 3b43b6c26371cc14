// SPDX-License-Identifier: Apache-2.0

package cuda

import "github.com/lockstep-ml/lockstep/internal/backend"

// launcher queues the kernels of one op. The operands were checked: they are live buffers of this device, no view
// leaves its buffer, and numbers of operands are at least those that op.go wants.
type launcher func(s *stream, c *backend.Call)

// launchers is the table of all ops; each family of kernels has a file with its part.
var launchers [backend.NumOps]launcher

func init() {
	for _, family := range []map[backend.Op]launcher{
		elementwiseOps, moveOps, reductionOps, scanOps, randomOps, optimizerOps, productOps, attentionOps, imageOps,
		indexingOps, rowOps,
	} {
		for op, l := range family {
			if launchers[op] != nil {
				panic("cuda: two launchers of " + op.String())
			}
			launchers[op] = l
		}
	}
}
