// SPDX-License-Identifier: Apache-2.0

// Package feed supplies a rank with the batches of each optimizer step: [Windows], of a dataset with a length or of an
// iterable one, loaded in the background. Package accelerate makes them for a rank of a job
// (accelerate.Accelerator.Windows), which is what training loops use; use this package to feed ranks that have no
// accelerator.
//
// It does not decide which rank gets which samples: package samplers does.
package feed
