// SPDX-License-Identifier: Apache-2.0

// Package simulation predicts a training step of a whole job on given hardware, and the cost of losing a rank. Use it
// to choose a mesh and a schedule before you have a cluster: the command lockstep simulate prints its results. A [Job]
// takes the work of each rank of a pipeline from a rehearsal (see package accelerate/pp), runs the pipeline's schedule
// on a clock, and adds the exchanges of the ranks that share stages.
//
// The prediction assumes ranks of equal speed and messages that do not slow each other down. Gradients are exchanged
// after the last backward pass of a stage.
package simulation
