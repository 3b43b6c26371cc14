// SPDX-License-Identifier: Apache-2.0

// Package accelerate runs your own training loop on any number of ranks. Use it when the loop of package trainer does
// not fit. It chooses the device, gives each rank its part of the samples, and adds up the gradients of all ranks.
// Start with [Run], which calls your loop on every rank with an [Accelerator].
//
// A loop makes its model and optimizer and calls [Accelerator.Prepare] once. [Accelerator.Windows] gives this rank's
// batches of each step ([Accelerator.IterableWindows] those of data without a length). A step is
// [Accelerator.Accumulate], which computes their gradients and exchanges them, then [Accelerator.ClipGradNorm] and
// [Accelerator.Step]. [Accelerator.StartWindow] and its [PendingStep] do the same and wait for the device once. The
// model is not wrapped.
//
// Ranks are goroutines of one process (the argument num_replicas) or processes that lockstep launch, torchrun,
// mpirun or srun started. The loop is the same, and 1, 2, 4 and 8 ranks give the same bits: gradients are added
// in an order that does not depend on their number.
//
// The package has no learning-rate schedules, logs or checkpoints (see packages optim, callbacks and checkpoint),
// and it starts no processes (see accelerate/launch).
//
// # For packages that train
//
// These are for package trainer; a loop under [Run] does not need them:
//
//   - [New], [Replicas], [Connect], [RunRanks], [WithGroup] and [ranks.Ranks.Open] are the parts of Run. They read the
//     arguments once; [Accelerator.SetArguments] replaces those of a rank.
//   - [ranks.Ranks.Abort] ends the other ranks; in your own loop, return the error.
//   - [ranks.Peers.GatherBytes], [ranks.Peers.GatherRows], [ranks.Peers.SumFloats] and [Accelerator.SyncParameters] lie
//     below [GatherObjects], [Accelerator.GatherForMetrics] and Prepare.
//   - [ranks.Ranks.Job], [Accelerator.Kernels], [Accelerator.GradientSets] and [Accelerator.Trace] serve the
//     trainer's log, its estimate of memory and its profiler.
package accelerate
