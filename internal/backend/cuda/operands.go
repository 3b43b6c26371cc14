// SPDX-License-Identifier: Apache-2.0

package cuda

import "github.com/lockstep-ml/lockstep/internal/backend"

// counts are numbers of operands.
type counts struct{ outs, ins int }

// operands are how many operands each op has at least: one output, and two inputs where nothing else is said.
var operands [backend.NumOps]counts

func init() {
	for op := range operands {
		operands[op] = counts{1, 2}
	}
	for op := backend.OpNeg; op <= backend.OpPowScalar; op++ {
		operands[op] = counts{1, 1}
	}
	for op, n := range map[backend.Op]counts{
		backend.OpCopy: {1, 1}, backend.OpFill: {1, 0}, backend.OpArange: {1, 0},
		backend.OpWhere: {1, 3}, backend.OpSwiGLUGrad: {2, 3}, backend.OpRoPE: {1, 3},
		backend.OpSum: {1, 1}, backend.OpMax: {1, 1}, backend.OpMin: {1, 1}, backend.OpArgMax: {1, 1},
		backend.OpArgMin: {1, 1}, backend.OpSumSq: {1, 1},
		backend.OpSoftmax: {1, 1}, backend.OpLogSoftmax: {1, 1}, backend.OpTopK: {2, 1}, backend.OpCumSum: {1, 1},
		backend.OpCrossEntropyGrad: {1, 4},
		backend.OpLayerNorm:        {3, 1}, backend.OpLayerNormGrad: {1, 4}, backend.OpLayerNormParamGrad: {1, 4},
		backend.OpRMSNorm: {2, 1}, backend.OpRMSNormGrad: {1, 3}, backend.OpRMSNormParamGrad: {1, 3},
		backend.OpBatchStats: {2, 1}, backend.OpBatchNorm: {1, 3}, backend.OpBatchNormGrad: {3, 4},
		backend.OpAttention: {2, 3}, backend.OpAttentionGrad: {3, 6},
		backend.OpDropout: {1, 1}, backend.OpUniform: {1, 0}, backend.OpNormal: {1, 0},
		backend.OpStochasticRound: {1, 1}, backend.OpAdamMoments: {3, 1}, backend.OpAdamW: {3, 1},
		backend.OpClipFactor: {1, 1},
		backend.OpIm2Col:     {1, 1}, backend.OpCol2Im: {1, 1}, backend.OpMaxPool: {2, 1},
		backend.OpMaxPoolGrad: {1, 2},
	} {
		operands[op] = n
	}
}
