// Package optim updates parameters from their gradients: optimizers, learning-rate
// schedules and gradient clipping.
//
// An optimizer is a chain of small transforms of the gradient (coupled or decoupled
// weight decay, momentum, Adam's scaling) followed by one step of the learning rate;
// AdamW, Adam and SGD are such chains under their well-known names. The package knows
// parameters as named tensors; which of them decay is nn's business, when to step is the
// trainer's.
package optim
