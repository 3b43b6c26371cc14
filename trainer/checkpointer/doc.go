// SPDX-License-Identifier: Apache-2.0

// Package checkpointer decides what a checkpoint of a training run holds, writes it, and resumes from it: the model's
// weights, the optimizer's state, the state of a communication hook, the arguments, and the files of the training loop.
// Package trainer uses it; your own program needs it only for [MergeWeights], which makes a saved model of a checkpoint
// whose parts several ranks wrote.
//
// Package checkpoint, below it, makes a set of files appear atomically and verifies them; it knows neither models nor
// optimizers. The training loop, above it, is a [Loop]: the checkpointer writes the loop's files and does not read
// them, except for the [Origin] that begins [ProgressFile].
package checkpointer
