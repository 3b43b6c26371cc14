// SPDX-License-Identifier: Apache-2.0

// Package optim updates parameters from their gradients: optimizers, learning-rate schedules and gradient
// clipping. With package trainer, the arguments optim, learning_rate and lr_scheduler_type choose them by name.
// Use this package in a training loop of your own, starting with [DefaultAdamW], [NewSchedule] and [ClipGradNorm],
// or to build another optimizer.
//
// An optimizer is a chain of small transforms of the gradient ([L2] or [DecoupledDecay], [Momentum],
// [ScaleByAdam]) followed by one step of the learning rate. AdamW, Adam and SGD are such chains; [New] makes
// others. Implement [Transform] for a rule that is not here, and give trainer.WithOptimizer a function that
// makes the chain.
//
// A parameter is a [tensor.Named], in a [Group] with its learning rate and weight decay. Which
// parameters decay, and when to step, is for the caller to say.
package optim
