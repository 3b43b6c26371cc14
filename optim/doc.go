// SPDX-License-Identifier: Apache-2.0

// Package optim updates parameters from their gradients: optimizers, learning-rate schedules and gradient clipping.
// With package trainer, the arguments optim, learning_rate and lr_scheduler_type choose them by name. Use this package
// in your own training loop, starting with [DefaultAdamW], [NewSchedule] and [ClipGradNorm], or to build another
// optimizer.
//
// An optimizer is a chain of small transforms of the gradient ([L2] or [DecoupledDecay], [Momentum], [ScaleByAdam])
// followed by one step of the learning rate. AdamW, Adam and SGD are such chains; [New] makes others. Implement
// [Transform] for another rule, and pass a function that makes the chain to trainer.WithOptimizer.
//
// A parameter is a [tensor.Named], in a [Group] with its learning rate and weight decay. The caller decides which
// parameters decay, and when to step.
package optim
