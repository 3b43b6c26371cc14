// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// kernel is a row of the table.
type kernel struct {
	run       func(*Device, *backend.Call)
	outs, ins int  // at least so many operands
	raw       bool // takes half operands as they are: it moves bytes, converts, or widens while it reads
	updates   bool // reads its outputs, too
	// flat, if not nil, returns the block function of an elementwise call whose operands are contiguous, of one shape
	// and float32 once they are widened; nil: it has none.
	flat func(c *backend.Call) flatBlock
}

// kernels is the table of all ops. A dtype that an op has no function for is a fault.
var kernels [backend.NumOps]kernel

// activations are the elementwise ops that OpLinear can apply.
var activations = [backend.NumOps]blocks{
	backend.OpReLU:     {f32: vector1(vecmath.ReLU), f64: reluBlock[float64]},
	backend.OpGELU:     {f32: vector1(vecmath.GELU), f64: mapBlock[float64](gelu64)},
	backend.OpGELUTanh: {f32: vector1(vecmath.GELUTanh), f64: mapBlock[float64](geluTanh64)},
	backend.OpSiLU:     {f32: vector1(vecmath.SiLU), f64: mapBlock[float64](silu64)},
}

// The table is filled here and not in a literal, since kernels launch kernels.
func init() {
	kernels = [backend.NumOps]kernel{
		backend.OpCopy:   {copyKernel, 1, 1, true, false, nil},
		backend.OpFill:   {fillKernel, 1, 0, false, false, nil},
		backend.OpArange: {arangeKernel, 1, 0, false, false, nil},

		backend.OpNeg: pointwise(1, blocks{f32: negBlock[float32], f64: negBlock[float64], i32: negBlock[int32],
			i64: negBlock[int64]}),
		backend.OpAbs: pointwise(1, blocks{f32: absFloatBlock[float32], f64: absFloatBlock[float64],
			i32: absIntBlock[int32], i64: absIntBlock[int64]}),
		backend.OpExp:       pointwise(1, blocks{f32: expBlock32, f64: mapBlock[float64](math.Exp)}),
		backend.OpLog:       pointwise(1, blocks{f32: mapBlock[float32](math.Log), f64: mapBlock[float64](math.Log)}),
		backend.OpSqrt:      pointwise(1, blocks{f32: sqrtBlock[float32], f64: sqrtBlock[float64]}),
		backend.OpRsqrt:     pointwise(1, blocks{f32: rsqrtBlock[float32], f64: rsqrtBlock[float64]}),
		backend.OpSin:       pointwise(1, blocks{f32: mapBlock[float32](math.Sin), f64: mapBlock[float64](math.Sin)}),
		backend.OpCos:       pointwise(1, blocks{f32: mapBlock[float32](math.Cos), f64: mapBlock[float64](math.Cos)}),
		backend.OpTanh:      pointwise(1, blocks{f32: vector1(vecmath.Tanh), f64: mapBlock[float64](math.Tanh)}),
		backend.OpSigmoid:   pointwise(1, blocks{f32: vector1(vecmath.Sigmoid), f64: mapBlock[float64](sigmoid64)}),
		backend.OpErf:       pointwise(1, blocks{f32: erfBlock32, f64: mapBlock[float64](math.Erf)}),
		backend.OpReLU:      pointwise(1, activations[backend.OpReLU]),
		backend.OpGELU:      pointwise(1, activations[backend.OpGELU]),
		backend.OpGELUTanh:  pointwise(1, activations[backend.OpGELUTanh]),
		backend.OpSiLU:      pointwise(1, activations[backend.OpSiLU]),
		backend.OpLeakyReLU: pointwise(1, blocks{f32: leakyReLUBlock[float32], f64: leakyReLUBlock[float64]}),
		backend.OpELU:       pointwise(1, blocks{f32: eluBlock[float32], f64: eluBlock[float64]}),
		backend.OpSoftplus:  pointwise(1, blocks{f32: softplusBlock32, f64: softplusBlock64}),
		backend.OpNot:       pointwise(1, blocks{boolean: notBlock}),
		backend.OpAffine: withNumbers(pointwise(1, blocks{f32: affineBlock32, f64: affineFloatBlock[float64],
			i32: affineIntBlock[int32], i64: affineIntBlock[int64]}), numbers{input: 1, at: 0, n: 1}),
		backend.OpPowScalar: pointwise(1, blocks{f32: powScalarBlock[float32], f64: powScalarBlock[float64]}),

		backend.OpTanhGrad:     pointwise(2, blocks{f32: tanhGradBlock[float32], f64: tanhGradBlock[float64]}),
		backend.OpSigmoidGrad:  pointwise(2, blocks{f32: sigmoidGradBlock[float32], f64: sigmoidGradBlock[float64]}),
		backend.OpReLUGrad:     pointwise(2, blocks{f32: vector2(vecmath.ReLUGrad), f64: reluGradBlock[float64]}),
		backend.OpGELUGrad:     pointwise(2, blocks{f32: vector2(vecmath.GELUGrad), f64: mapGradBlock(geluSlope64)}),
		backend.OpGELUTanhGrad: {geluTanhGradKernel, 1, 2, false, false, geluTanhGradFlat},
		backend.OpSiLUGrad:     pointwise(2, blocks{f32: vector2(vecmath.SiLUGrad), f64: mapGradBlock(siluSlope64)}),

		backend.OpLeakyReLUGrad: pointwise(2,
			blocks{f32: leakyReLUGradBlock[float32], f64: leakyReLUGradBlock[float64]}),
		backend.OpELUGrad:      pointwise(2, blocks{f32: eluGradBlock[float32], f64: eluGradBlock[float64]}),
		backend.OpSoftplusGrad: pointwise(2, blocks{f32: softplusGradBlock32, f64: softplusGradBlock64}),

		backend.OpBCEWithLogits:      {bceKernel, 1, 2, false, false, nil},
		backend.OpBCEWithLogitsSlope: {bceSlopeKernel, 1, 2, false, false, nil},

		backend.OpAdd: pointwise(2, blocks{vector2(vecmath.Add), addBlock[float64], addBlock[int32],
			addBlock[int64], addBlock[uint8], nil}),
		backend.OpSub: pointwise(2, blocks{vector2(vecmath.Sub), subBlock[float64], subBlock[int32],
			subBlock[int64], subBlock[uint8], nil}),
		backend.OpMul: pointwise(2, blocks{vector2(vecmath.Mul), mulBlock[float64], mulBlock[int32],
			mulBlock[int64], mulBlock[uint8], nil}),
		backend.OpDiv: pointwise(2, blocks{f32: vector2(vecmath.Div), f64: divBlock[float64]}),
		backend.OpPow: pointwise(2, blocks{f32: powBlock[float32], f64: powBlock[float64]}),
		backend.OpMaximum: pointwise(2, blocks{maximumBlock[float32], maximumBlock[float64], maximumBlock[int32],
			maximumBlock[int64], maximumBlock[uint8], nil}),
		backend.OpMinimum: pointwise(2, blocks{minimumBlock[float32], minimumBlock[float64], minimumBlock[int32],
			minimumBlock[int64], minimumBlock[uint8], nil}),
		backend.OpAxpby: pointwise(2, blocks{f32: axpbyBlock32, f64: axpbyBlock[float64]}),
		backend.OpEq: comparison(blocks{eqBlock[float32], eqBlock[float64], eqBlock[int32], eqBlock[int64],
			eqBlock[uint8], eqBlock[uint8]}),
		backend.OpNe: comparison(blocks{neBlock[float32], neBlock[float64], neBlock[int32], neBlock[int64],
			neBlock[uint8], neBlock[uint8]}),
		backend.OpLt: comparison(blocks{ltBlock[float32], ltBlock[float64], ltBlock[int32], ltBlock[int64],
			ltBlock[uint8], ltBlock[uint8]}),
		backend.OpLe: comparison(blocks{leBlock[float32], leBlock[float64], leBlock[int32], leBlock[int64],
			leBlock[uint8], leBlock[uint8]}),
		backend.OpGt: comparison(blocks{gtBlock[float32], gtBlock[float64], gtBlock[int32], gtBlock[int64],
			gtBlock[uint8], gtBlock[uint8]}),
		backend.OpGe: comparison(blocks{geBlock[float32], geBlock[float64], geBlock[int32], geBlock[int64],
			geBlock[uint8], geBlock[uint8]}),
		backend.OpAnd:   pointwise(2, blocks{boolean: andBlock}),
		backend.OpOr:    pointwise(2, blocks{boolean: orBlock}),
		backend.OpWhere: {where, 1, 3, true, false, nil},

		backend.OpSwiGLU:     pointwise(2, blocks{f32: vector2(vecmath.SwiGLU), f64: swigluBlock64}),
		backend.OpSwiGLUGrad: {swigluGradKernel, 2, 3, false, false, swigluGradFlat},
		backend.OpRoPE:       {ropeKernel, 1, 3, false, false, nil},

		backend.OpSum: {sumKernel, 1, 1, true, false, nil},
		backend.OpMax: extremum(extremes{maxBody[float32], maxBody[float64], maxBody[int32], maxBody[int64]}),
		backend.OpMin: extremum(extremes{minBody[float32], minBody[float64], minBody[int32], minBody[int64]}),
		backend.OpArgMax: argExtremum(extremes{argMaxBody[float32], argMaxBody[float64], argMaxBody[int32],
			argMaxBody[int64]}),
		backend.OpArgMin: argExtremum(extremes{argMinBody[float32], argMinBody[float64], argMinBody[int32],
			argMinBody[int64]}),
		backend.OpSumSq: {sumSqKernel, 1, 1, false, false, nil},

		backend.OpSoftmax:        rowwise(1, nil, softmaxRows[float32], softmaxRows[float64], nil),
		backend.OpSoftmaxGrad:    rowwise(2, nil, softmaxGradRows[float32], softmaxGradRows[float64], nil),
		backend.OpLogSoftmax:     rowwise(1, nil, logSoftmaxRows[float32], logSoftmaxRows[float64], nil),
		backend.OpLogSoftmaxGrad: rowwise(2, nil, logSoftmaxGradRows[float32], logSoftmaxGradRows[float64], nil),
		backend.OpTopK:           {topKKernel, 2, 1, false, false, nil},
		backend.OpCumSum:         {cumSumKernel, 1, 1, false, false, nil},
		backend.OpCrossEntropy: rowwise(2, checkCrossEntropy, crossEntropyRows[float32],
			crossEntropyRows[float64], crossEntropyRowsHalf),
		backend.OpCrossEntropyGrad: rowwise(4, checkCrossEntropyGrad, crossEntropyGradRows[float32],
			crossEntropyGradRows[float64], nil),
		backend.OpLayerNorm: withSums(rowwise(1, checkLayerNorm, layerNormRows[float32], layerNormRows[float64], nil)),
		backend.OpLayerNormGrad: withSums(normGrad(4, checkLayerNormGrad, layerNormGradRows[float32],
			layerNormGradRows[float64], layerNormGradBlocks[float32], layerNormGradBlocks[float64])),
		backend.OpLayerNormParamGrad: withSums(paramGrad(4, layerNormParts[float32], layerNormParts[float64])),
		backend.OpRMSNorm:            rowwise(1, checkRMSNorm, rmsNormRows[float32], rmsNormRows[float64], nil),
		backend.OpRMSNormGrad: withSums(normGrad(3, checkRMSNormGrad, rmsNormGradRows[float32],
			rmsNormGradRows[float64], rmsNormGradBlocks[float32], rmsNormGradBlocks[float64])),
		backend.OpRMSNormParamGrad: paramGrad(3, rmsNormParts[float32], rmsNormParts[float64]),

		backend.OpBatchStats: batchwise(2, 1, nil, nil, batchStatsChannels[float32], batchStatsChannels[float64]),
		backend.OpBatchNorm:  batchwise(1, 3, []int{0}, nil, batchNormChannels[float32], batchNormChannels[float64]),
		backend.OpBatchNormGrad: batchwise(3, 4, []int{0}, []int{3}, batchNormGradChannels[float32],
			batchNormGradChannels[float64]),

		backend.OpEmbedding:     {embeddingKernel, 1, 2, true, false, nil},
		backend.OpEmbeddingGrad: {embeddingGradKernel, 1, 2, false, false, nil},
		backend.OpGather:        {gatherKernel, 1, 2, true, false, nil},
		backend.OpScatterAdd:    {scatterAddKernel, 1, 2, false, true, nil},

		backend.OpMatMul:        {matMulKernel, 1, 2, true, false, nil},
		backend.OpLinear:        {linearKernel, 1, 2, true, false, nil},
		backend.OpAttention:     {attentionKernel, 2, 3, true, false, nil},
		backend.OpAttentionGrad: {attentionGradKernel, 3, 6, true, false, nil},

		backend.OpDropout: {dropoutKernel, 1, 1, false, false, nil},
		backend.OpUniform: {uniformKernel, 1, 0, false, false, nil},
		backend.OpNormal:  {normalKernel, 1, 0, false, false, nil},

		backend.OpStochasticRound: {stochasticRoundKernel, 1, 1, true, false, nil},

		backend.OpAdamMoments: {adamKernel, 3, 1, false, true, nil},
		backend.OpAdamW: withNumbers(kernel{adamWKernel, 3, 1, false, true, nil}, numbers{input: 1, at: 7, n: 1},
			numbers{input: 2, at: 3, n: 4}),
		backend.OpClipFactor: {clipFactorKernel, 1, 1, false, false, nil},

		backend.OpIm2Col:          {im2ColKernel, 1, 1, false, false, nil},
		backend.OpCol2Im:          {col2ImKernel, 1, 1, false, false, nil},
		backend.OpConv2D:          {conv2DKernel, 1, 2, false, false, nil},
		backend.OpConv2DGrad:      {conv2DGradKernel, 1, 2, false, false, nil},
		backend.OpConv2DParamGrad: {conv2DParamGradKernel, 1, 2, false, false, nil},

		backend.OpMaxPool:     {maxPoolKernel, 2, 1, false, false, nil},
		backend.OpMaxPoolGrad: {maxPoolGradKernel, 1, 2, false, false, nil},
	}
}
