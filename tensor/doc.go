// SPDX-License-Identifier: Apache-2.0

// Package tensor is the engine below everything else: tensors, the operations on them, automatic differentiation and
// memory scopes. Use it to write your own layer, loss or metric, or to compute with arrays. Start with [NewCtx] and
// [FromSlice], and read results with [ToSlice] and [Item]:
//
//	c := tensor.NewCtx(tensor.CPU())
//	w := tensor.FromSlice(c, []float32{1, 2, 3}, 3).SetRequiresGrad(true)
//	loss := tensor.Sum(c, tensor.Mul(c, w, w), nil, false)
//	tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil)
//	tensor.ToSlice[float32](c, w.Grad()) // 2 4 6
//
// A [*Ctx] is the first argument of every operation. It carries the device, the gradient mode, the memory scope
// and the random stream; there are no modes in package variables, so that several ranks can live in one
// process. A Ctx belongs to one goroutine at a time. [Ctx.NoGrad] returns one that records nothing for a
// backward pass, and [Ctx.Scope] frees what was made inside as soon as it ends, without
// waiting for the garbage collector.
//
// Misuse (a wrong shape, dtype or device, a freed tensor) panics with [*Error]; [Try] turns that panic into an
// error.
//
// The package has no modules, optimizers or files: see packages nn, optim, models and checkpoint.
//
// # For packages that train
//
// Optimizers use operations that write into an existing tensor: [AdamW], [AdamMoments], and the functions whose names
// end in Into. [Ctx.Trace], [Ctx.SetStep], [HostBytes], [FromHost], [WriteBytes], [Tensor.OnGrad], [Tensor.SwapGrad],
// [Reaching] and [DroppingLowered] serve packages accelerate and checkpoint. [Tensor.Boundary], [Accumulating] and
// [DelayWeightGrads] are for the stages of pipelines. [RegisterDevice] is for packages that add a device. A model or a
// program needs none of them.
package tensor
