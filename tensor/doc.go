// Package tensor is the engine: strided tensors, the ops on them, reverse-mode
// automatic differentiation and explicit memory scopes.
//
//	c := tensor.NewCtx(tensor.CPU())
//	w := tensor.FromSlice(c, []float32{1, 2, 3}, 3).SetRequiresGrad(true)
//	loss := tensor.Sum(c, tensor.Mul(c, w, w), nil, false)
//	tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil)
//	tensor.ToSlice[float32](c, w.Grad()) // 2 4 6
//
// A *Ctx is the first argument of every op. It carries the device and its stream,
// the gradient mode, the memory scope and the random stream; there are no modes in
// package variables, so several ranks can live in one process. A Ctx belongs to one
// goroutine at a time.
//
// Misuse (a wrong shape, dtype or device, a freed tensor) panics with *Error; Try
// turns that panic into an error. The package knows nothing of modules, parameters
// by name, optimizers or files: see nn, optim and checkpoint.
package tensor
