// SPDX-License-Identifier: Apache-2.0

package backend

import "fmt"

// Op names a kernel. The comments are the contract: operand order, shapes,
// dtypes, attributes. Unless an op says otherwise,
//
//   - elementwise operands all have the shape of Out[0] (strides 0 where broadcast),
//     may be strided in any way, and Out[0] may be the same view as an input;
//   - all floating-point operands have one dtype. Float32 and float64 compute in
//     their own type; BFloat16 and Float16 compute in float32 and round once at the end;
//   - sums accumulate in an order that depends only on the shape, never on the number of workers; float32 sums
//     accumulate in float64;
//   - a "row kernel" works along the last dim; its operands are contiguous;
//   - empty operands (a dim of size 0) are valid: nothing is written, sums give 0.
//
// Conditional. Where Call.If names a flag, and that is 0 when the kernel runs, nothing is written: outputs keep what
// they hold. OpCopy, OpFill, OpAdd, OpAffine, OpAxpby, OpStochasticRound, OpAdamMoments and OpAdamW may be
// conditional. Numbers that an op takes from memory instead of Floats (OpAffine, OpAdamW) are read when the kernel
// runs. Only backends that support OpClipFactor see either, and must have OpAdamW too.
type Op uint16

const (
	OpInvalid Op = iota

	// Data movement.

	// Out0 = In0, converted to Out0's dtype (any pair; float→int truncates toward zero, x≠0 → true). Any strides on
	// both sides.
	OpCopy
	OpFill   // Out0 = Floats[0] for floating dtypes, Ints[0] for the others (bool: ≠ 0).
	OpArange // Out0[i] = Floats[0] + i·Floats[1] (float) or Ints[0] + i·Ints[1] (int); 1-D.

	// Elementwise, one input, floating dtypes (Neg, Abs also int32 and int64).

	OpNeg
	OpAbs
	OpExp
	OpLog
	OpSqrt
	OpRsqrt
	OpSin
	OpCos
	OpTanh
	OpSigmoid
	OpErf
	OpReLU
	OpGELU      // x·Φ(x), by erf
	OpGELUTanh  // ½x(1+tanh(√(2/π)(x+0.044715x³)))
	OpSiLU      // x·σ(x)
	OpLeakyReLU // x where x > 0, else Floats[0]·x
	OpELU       // x where x > 0, else Floats[0]·(eˣ−1). Clevert et al. 2016
	OpSoftplus  // ln(1+e^(βx))/β with β = Floats[0] > 0; x where βx > Floats[1]
	OpNot       // bool
	// x·Floats[0] + Floats[1]; int32 and int64: x·Ints[0] + Ints[1]. Floats with NIn 2: In1 is a float64 [1] in place
	// of Floats[0].
	OpAffine
	OpPowScalar // x^Floats[0]

	// Gradients of the above: In0 = the saved tensor, In1 = dy, Out0 = dx.

	OpTanhGrad    // In0 = y: dy·(1−y²)
	OpSigmoidGrad // In0 = y: dy·y(1−y)
	OpReLUGrad    // In0 = y: dy where y > 0, else 0
	OpGELUGrad    // In0 = x
	// In0 = x. With a second output, contiguous operands of one size, of which Out0 may be In1: Out1 = OpGELUTanh of x,
	// with its bits; Out0 differs in bits where dx is below 1e-28·dy
	OpGELUTanhGrad
	OpSiLUGrad      // In0 = x
	OpLeakyReLUGrad // In0 = x: dy where x > 0, else Floats[0]·dy
	OpELUGrad       // In0 = x: dy where x > 0, else Floats[0]·eˣ·dy
	OpSoftplusGrad  // In0 = x: dy where βx > Floats[1], else σ(βx)·dy

	// Elementwise, two inputs. Arithmetic: all floats, int32, int64, uint8 (Div, Pow: floats).

	OpAdd // Out0 may be float32 where inputs are of one half type, or one of them is: the sum is then not rounded
	OpSub
	OpMul
	OpDiv
	OpPow
	OpMaximum // NaN if either is NaN
	OpMinimum
	OpAxpby // Floats[0]·In0 + Floats[1]·In1; floats
	OpEq    // comparisons: operands of one dtype (any), Out0 bool
	OpNe
	OpLt
	OpLe
	OpGt
	OpGe
	OpAnd // bool
	OpOr  // bool

	OpSwiGLU     // In0·σ(In0)·In1; floats. Shazeer 2020
	OpSwiGLUGrad // In0 gate, In1 up, In2 dy, Out0 dgate, Out1 dup; contiguous, of one size

	// OpBCEWithLogits: In0 logits x, In1 targets y, In2 weights p of the positive part (NIn 2: 1); Out0
	// p·y·ln(1+e⁻ˣ) + (1−y)·ln(1+eˣ). No term cancels another, so that small losses keep their digits. Floats.
	OpBCEWithLogits
	OpBCEWithLogitsSlope // likewise; Out0 is the derivative by x, (1−y)·σ(x) − p·y·σ(−x)

	OpWhere // Out0 = In0 (bool) ? In1 : In2; any dtype

	// Reductions. Out0 has In0's number of dims, with size 1 where a dim is reduced. In0 may be strided.

	OpSum    // floats, int32, int64; Out0 may be float32 where In0 is of a half type: it is then not rounded
	OpMax    // floats, int32, int64; NaN wins; an empty reduced dim is a fault
	OpMin    // likewise
	OpArgMax // Out0 int64: index along the one reduced dim Ints[0] of the first maximum (NaN wins)
	OpArgMin // likewise of the first minimum
	// In0 contiguous float, flattened; Out0 float64 [ceil(n/4096)]: sum of squares of each 4096-element block, in
	// float64
	OpSumSq

	// Row kernels.

	OpSoftmax        // In0 x, Out0 y
	OpSoftmaxGrad    // In0 y, In1 dy, Out0 dx = y·(dy − Σ y·dy)
	OpLogSoftmax     // In0 x, Out0 y
	OpLogSoftmaxGrad // In0 y, In1 dy, Out0 dx = dy − exp(y)·Σ dy
	// OpTopK: In0 x; Out0 the K largest elements of each row, the largest first, or with Ints[0] = 1 the K smallest,
	// the smallest first; Out1 int64 their indices. The outputs have In0's shape except for the last dim K, at most
	// In0's. NaN counts as larger than all numbers; of equal elements the one of the lower index comes first. Floats,
	// int32, int64.
	OpTopK
	OpCumSum // Out0[i] = Σ In0[j] over j ≤ i, or with Ints[0] = 1 over j ≥ i, added in that order; floats, int32, int64
	// OpCrossEntropy: In0 logits [N,V], In1 targets [N] int32 or int64; Out0 loss [N], Out1 log-sum-exp [N], both in
	// float32 (float64 for float64 logits). A target equal to Ints[0] (ignore index) gives loss 0; any other outside
	// [0,V) is a fault. Out2 (NOut 2: none) softmax − onehot, 0 in ignored rows; it may be In0. The rows of In0 and of
	// Out2 may lie apart (see View.RowStride).
	OpCrossEntropy
	// OpCrossEntropyGrad: In0 logits, In1 targets, In2 log-sum-exp [N], In3 dloss [N] (dtype of log-sum-exp; may have
	// stride 0); Out0 dlogits = (softmax − onehot)·dloss, 0 in ignored rows.
	OpCrossEntropyGrad
	// OpLayerNorm: In0 x [N,C], In1 weight [C], In2 bias [C] (NIn is 1 without affine, 2 without bias); Floats[0] =
	// eps; Out0 y, Out1 mean [N], Out2 1/σ [N] (float32, or float64 for float64 x). y may be of a half type where x is
	// float32, and has then the bits of OpCopy of what it would be else. With Ints[1] = 1 the last input is part [N,C],
	// of a half type as y is, and the rows are those of OpAdd of x and part. Ba et al. 2016.
	OpLayerNorm
	// OpLayerNormGrad: In0 x, In1 mean, In2 rstd, In3 dy, In4 weight (absent without affine: NIn 4); Out0 dx. With more
	// outputs also those of OpLayerNormParamGrad, with the same bits: Out1 dweight, Out2 dbias. As in all gradients of
	// norms dy may be of a half type where x is float32, and with Ints[1] = 1 part of dy's follows the parameters. With
	// Ints[0] = 1 the last input is more [N,C], of the dtype of x, which is float32 or float64: Out0 is OpAdd of more
	// and dx, and may be the same view as more. With Ints[2] = 1 the last output is Out0 rounded to dy's half type.
	OpLayerNormGrad
	// OpLayerNormParamGrad: In0 x, In1 mean, In2 rstd, In3 dy; Out0 dweight [C], Out1 dbias [C] (NOut 1: weight only).
	// Rows are summed in fixed blocks of 64, the blocks in order.
	OpLayerNormParamGrad
	// In0 x [N,C], In1 weight [C] (NIn 1: none); Floats[0] = eps; Out0 y, of OpLayerNorm's dtypes, Out1 1/rms [N].
	// Zhang & Sennrich 2019.
	OpRMSNorm
	// In0 x [N,C], In1 rrms, In2 dy, In3 weight (NIn 3: none); Out0 dx, and with NOut 2 Out1 dweight, as
	// OpRMSNormParamGrad's. Ints[0] and Ints[2] as OpLayerNormGrad's.
	OpRMSNormGrad
	OpRMSNormParamGrad // In0 x, In1 rrms, In2 dy; Out0 dweight [C]

	// Batch norm (Ioffe & Szegedy 2015) works on the channels, dim 1, of contiguous x [N,C,L]; statistics are [C], in
	// float32 (float64 for float64 x). Weight, bias and their gradients have one dtype: that of x, or float32 for half
	// x.

	OpBatchStats // In0 x; Out0 mean, Out1 biased variance; 0 of nothing
	// In0 x, In1 mean, In2 variance, In3 weight [C], In4 bias [C] (NIn 3: neither); Floats[0] = eps; Out0 y = (x −
	// mean)/√(variance + eps)·weight + bias
	OpBatchNorm
	// OpBatchNormGrad: In0 x, In1 mean, In2 variance, In3 dy, In4 weight (NIn 4: none); Floats[0] = eps; Out0 dx, Out1
	// dweight [C], Out2 dbias [C]. With Ints[0] = 1 mean and variance are constants, else they are x's.
	OpBatchNormGrad

	// Indexing. Indices are int32 or int64, contiguous; one out of range is a fault that names it.

	OpEmbedding // In0 table [V,C], In1 ids [N]; Out0 [N,C]
	// In0 ids [N], In1 dy [N,C]; Out0 dtable [V,C], overwritten: the rows of one id are added in order of N. Ints[0] =
	// 1 adds the sums to Out0 instead. The rows of ids in [V,V+Ints[1]) are left out.
	OpEmbeddingGrad
	OpGather // In0 x, In1 index (shape of Out0), dim Ints[0]: as torch.gather; In0 strided
	// Out0 (contiguous) += In0 src at In1 index along dim Ints[0]: as torch.scatter_add; src has index's shape; adds in
	// index order
	OpScatterAdd

	// Products.

	// OpMatMul: In0 [B…,M,K] · In1 [B…,K,N] → Out0 [B…,M,N]; equal numbers of dims ≥ 2, batch dims of Out0's size
	// (stride 0 where broadcast), inputs strided in any way, Out0's rows contiguous; they may lie apart. Ints[0] = 1
	// adds to Out0 instead of overwriting. Floats; Out0 may be float32 where both inputs are of one half type: it is
	// then not rounded.
	OpMatMul
	// OpLinear: In0 x [M,K] · In1 w [K,N], strided in any way, plus In2 bias [N] (NIn 2: none), and then the op of one
	// input and one output that Ints[0] names: OpReLU, OpGELU, OpGELUTanh or OpSiLU, or 0 for none. Out0 [M,N],
	// contiguous; Out1 (NOut 1: not wanted, or no op) is what the op was applied to. In float32 and float64 the bits
	// are those of OpCopy of the bias, OpMatMul added to it, and that op, one after the other; half types round what
	// the op is applied to, and what comes of it. Floats.
	OpLinear
	// OpAttention: scaled dot-product attention, softmax(scale·QKᵀ + mask)V. In0 q [B,H,Tq,D], In1 k [B,Hkv,Tk,D], In2
	// v [B,Hkv,Tk,Dv], H a multiple of Hkv (grouped queries: query head h uses head h/(H/Hkv)); In3 mask, [B,H,Tq,Tk]
	// with strides 0 where broadcast (NIn 3: none): bool, true = attend, or of q's dtype, added to the scaled products.
	// q, k, v strided with stride 1 in the last dim. Floats[0] = scale, Floats[1] = dropout probability, Floats[2] =
	// soft cap (above 0: scaled products s are cap·tanh(s/cap), before the mask; not with Traits.NoSoftCap). Ints: [0]
	// causal (key j is seen by query i if koff+j ≤ qoff+i), [1] qoff, [2] koff, [3] stream position of sample 0
	// (dropout; element = index in [H,Tq,Tk] of the sample, behind the [5] heads of other ranks, which GPUs do not
	// count), [4] window (if above 0, key j is seen only if |qoff+i − koff−j| < window). Out0 [B,H,Tq,Dv] strided with
	// stride 1 in the last dim, Out1 log-sum-exp [B,H,Tq] (float32, float64 for float64), contiguous: before dropout;
	// −Inf where no key is seen, and then the output row is 0. Out2 (NOut 2: not wanted), for a DropoutKeeper alone:
	// dropout's decisions, for the gradient, int32 [KeptDropout].
	OpAttention
	// OpAttentionGrad: In0 q, In1 k, In2 v, In3 lse, In4 dout, In5 out [B,H,Tq,Dv], or delta [B,H,Tq] (dtype of lse) =
	// Σ dout·out − dlse over the last dim, In6 mask, then OpAttention's Out2 (either may be missing); attributes as
	// above. Out0 dq, Out1 dk, Out2 dv: of
	// the shapes of q, k and v, strided with stride 1 in the last dim, overwritten; the query heads of a group are
	// added in order. Out3 (NOut 3: not wanted): the gradient of a mask of q's dtype, contiguous [B,H,Tq,Tk].
	OpAttentionGrad

	// OpRoPE turns pairs of elements by angles: In0 x [B,H,T,D], In1 cos and In2 sin [B,T,R] with 2R ≤ D (stride 0
	// where broadcast) → Out0 y [B,H,T,D]: for e < R y[e] = x[e]·cos[e] − x[R+e]·sin[e] and y[R+e] = x[R+e]·cos[e] +
	// x[e]·sin[e]; elements from 2R on are copied. All strided with stride 1 in the last dim. Ints[0] = 1 turns back
	// (−sin), which is the gradient. In1 and In2 may be float32 where x is of a half type. Su et al. 2021.
	OpRoPE

	// Random numbers, see internal/rng. Element e of sample s (first dim; 0-D counts as one sample) is drawn at (Key,
	// Ints[0]+s, e).

	// In0 x contiguous; Out0 = x/(1−p) where the uniform draw u ≥ p, else 0 (u is rng.Float32At's for every dtype); p =
	// Floats[0]; Ints[0] = stream position of sample 0
	OpDropout
	// Out0 = Floats[0] + u·(Floats[1]−Floats[0]); element index over the whole tensor (one sample), position Ints[0]
	OpUniform
	OpNormal // Out0 = Floats[0] + z·Floats[1]; likewise

	// OpStochasticRound: In0 float32, Out0 of a half type, contiguous, of one size. A number between two that Out0 can
	// hold becomes the one farther from zero with the probability of its distance from the other: by the 32 bits drawn
	// at (Key, Ints[0], Ints[1]+e) for element e. One beyond the largest becomes the largest, and from twice the
	// largest power of two on infinite.
	OpStochasticRound

	// Optimizers: contiguous, flat, in place.

	// OpAdamMoments: In0 g; Out0 m = β₁m+(1−β₁)g, Out1 v = β₂v+(1−β₂)g², Out2 u = (m/c₁)/(√(v/c₂)+ε). Floats: β₁, β₂,
	// ε, c₁ = 1−β₁ᵗ, c₂ = 1−β₂ᵗ. Kingma & Ba 2015.
	OpAdamMoments
	// OpAdamW: In0 g; Out0 p, Out1 m, Out2 v: OpAdamMoments of the gradient Floats[7]·g, then p = (1 − lr·decay)·p −
	// lr·u, in one pass. Floats as there, then [5] lr, [6] decay. In float32 and float64 the bits are those of
	// OpAffine, OpAdamMoments, OpAffine and OpAxpby one after the other. Loshchilov & Hutter 2019. Numbers that change
	// from step to step may lie in memory, contiguous, in float64: with NIn 3, In1 [1] stands for Floats[7] and In2 [4]
	// for Floats[3] to Floats[6].
	OpAdamW
	// OpClipFactor: In0 float64 [N], sums of squares; In1 float64 [M], losses (NIn 1: none); contiguous. Floats:
	// [0] the largest norm (0: any), [1] the scale of the losses. With norm = √(In0[0] + In0[1] + …)/scale, added in
	// that order in float64, Out0 float64 [4] is norm; factor = c/scale, where c = max/(norm + 1e-6) if max > 0, norm
	// is finite and that is below 1, else 1; 1 if norm and the losses' sum, added in order, are finite, else 0; and 1
	// if factor ≠ 1, else 0. The third is 0 too if an earlier kernel of the stream faulted and no caller knows yet, so
	// that nothing is updated by what such a kernel left. Pascanu et al. 2013.
	OpClipFactor

	// Images: contiguous. A window is moved over rows and columns of planes of H × W pixels: its element (a,b) at place
	// (i,j) is pixel (i·sh − ph + a·dh, j·sw − pw + b·dw), or padding where there is none. Ints: [0] sh, [1] sw > 0
	// (stride), [2] ph, [3] pw (padding; negative where the first window begins inside), [4] dh, [5] dw > 0 (dilation).

	// OpIm2Col: In0 x [P,H,W,L], P planes of pixels of L elements → Out0 [P,KH,KW,OH,OW,L], what each window sees; 0
	// for padding. Floats.
	OpIm2Col
	// OpCol2Im: its gradient. In0 [P,KH,KW,OH,OW,L] → Out0 x [P,H,W,L], overwritten: the elements that a pixel went to
	// are added in the order of (a,b).
	OpCol2Im
	// OpConv2D: In0 x [N,C,H,W], In1 w [O,C,KH,KW], In2 bias [O] (NIn 2: none) → Out0 y [N,O,OH,OW], the
	// cross-correlation: the sum of w times what the window sees, plus bias. A backend may take an algorithm that adds
	// in another order (Winograd's, in single precision; a library's), but one for all samples of a shape. Floats.
	OpConv2D
	// OpConv2DGrad: its gradient by x. In0 dy, In1 w → Out0 dx.
	OpConv2DGrad
	// OpConv2DParamGrad: its gradient by w. In0 x, In1 dy → Out0 dw. Samples are added in groups, the groups in order,
	// or in a library's order, which follows from the shape.
	OpConv2DParamGrad
	// OpMaxPool: In0 x [N,C,H,W], H and W > 0 → Out0 [N,C,OH,OW], Out1 int64 of the same shape: maximum of each window
	// and its place y·W + x, the first one's; NaN wins. Ints[4], [5]: the window's size KH, KW (no dilation); padding
	// is not seen and at most half of it; OH = (H + 2·ph − KH)/sh + 1, OW likewise. Floats.
	OpMaxPool
	// OpMaxPoolGrad: its gradient. In0 dy, In1 OpMaxPool's Out1, Ints as there → Out0 dx, overwritten: the elements of
	// dy whose window has its maximum at a pixel are added in order.
	OpMaxPoolGrad

	NumOps
)

var opNames = [NumOps]string{
	OpInvalid: "invalid",
	OpCopy:    "copy", OpFill: "fill", OpArange: "arange",
	OpNeg: "neg", OpAbs: "abs", OpExp: "exp", OpLog: "log", OpSqrt: "sqrt", OpRsqrt: "rsqrt", OpSin: "sin",
	OpCos:  "cos",
	OpTanh: "tanh", OpSigmoid: "sigmoid", OpErf: "erf", OpReLU: "relu", OpGELU: "gelu", OpGELUTanh: "gelu_tanh",
	OpSiLU:      "silu",
	OpLeakyReLU: "leaky_relu", OpELU: "elu", OpSoftplus: "softplus",
	OpNot: "not", OpAffine: "affine", OpPowScalar: "pow_scalar",
	OpTanhGrad: "tanh_grad", OpSigmoidGrad: "sigmoid_grad", OpReLUGrad: "relu_grad", OpGELUGrad: "gelu_grad",
	OpGELUTanhGrad: "gelu_tanh_grad", OpSiLUGrad: "silu_grad",
	OpLeakyReLUGrad: "leaky_relu_grad", OpELUGrad: "elu_grad", OpSoftplusGrad: "softplus_grad",
	OpBCEWithLogits: "bce_with_logits", OpBCEWithLogitsSlope: "bce_with_logits_slope",
	OpAdd: "add", OpSub: "sub", OpMul: "mul", OpDiv: "div", OpPow: "pow", OpMaximum: "maximum", OpMinimum: "minimum",
	OpAxpby: "axpby",
	OpEq:    "eq", OpNe: "ne", OpLt: "lt", OpLe: "le", OpGt: "gt", OpGe: "ge", OpAnd: "and", OpOr: "or",
	OpWhere:  "where",
	OpSwiGLU: "swiglu", OpSwiGLUGrad: "swiglu_grad", OpRoPE: "rope",
	OpSum: "sum", OpMax: "max", OpMin: "min", OpArgMax: "argmax", OpArgMin: "argmin", OpSumSq: "sum_sq",
	OpSoftmax: "softmax", OpSoftmaxGrad: "softmax_grad", OpLogSoftmax: "log_softmax",
	OpLogSoftmaxGrad: "log_softmax_grad",
	OpTopK:           "topk", OpCumSum: "cumsum",
	OpCrossEntropy: "cross_entropy", OpCrossEntropyGrad: "cross_entropy_grad",
	OpLayerNorm: "layer_norm", OpLayerNormGrad: "layer_norm_grad", OpLayerNormParamGrad: "layer_norm_param_grad",
	OpRMSNorm: "rms_norm", OpRMSNormGrad: "rms_norm_grad", OpRMSNormParamGrad: "rms_norm_param_grad",
	OpBatchStats: "batch_stats", OpBatchNorm: "batch_norm", OpBatchNormGrad: "batch_norm_grad",
	OpEmbedding: "embedding", OpEmbeddingGrad: "embedding_grad", OpGather: "gather", OpScatterAdd: "scatter_add",
	OpMatMul: "matmul", OpLinear: "linear", OpAttention: "attention", OpAttentionGrad: "attention_grad",
	OpDropout: "dropout", OpUniform: "uniform", OpNormal: "normal", OpStochasticRound: "stochastic_round",
	OpAdamMoments: "adam_moments", OpAdamW: "adamw", OpClipFactor: "clip_factor",
	OpIm2Col: "im2col", OpCol2Im: "col2im", OpMaxPool: "max_pool", OpMaxPoolGrad: "max_pool_grad",
	OpConv2D: "conv2d", OpConv2DGrad: "conv2d_grad", OpConv2DParamGrad: "conv2d_param_grad",
}

// String returns the kernel's name in lower case.
func (o Op) String() string {
	if o < NumOps && opNames[o] != "" {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint16(o))
}
