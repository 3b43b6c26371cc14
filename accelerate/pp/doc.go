// SPDX-License-Identifier: Apache-2.0

// Package pp is pipeline parallelism: it cuts a model into stages, puts them on ranks, and runs the micro-batches of a
// training step through them. It is for package accelerate. Start with [Partition], which cuts a model whose costs
// [Measure] has found, and [New], whose Pipeline runs the steps in the order of a schedule: see package schedule.
//
// A model lists its parts (models.Pipelined): the first part, its blocks, and the last part. Each stage is one or more
// consecutive parts. A rank has the whole model as a tree of modules, but memory only for the parameters of its own
// stages, if the model was made with nn.Init.Deferred; parameters keep the names of the whole model.
//
// The gradients have the bits of one process. Each stage adds the weight gradients of its micro-batches in ascending
// order and in the tree of package accumulation, and draws the random numbers that it would draw in the whole model.
package pp
