// Package ddp sums gradients over the ranks of a group, bucket by bucket, while backward
// still computes others: distributed data parallelism as in PyTorch (Li et al. 2020).
//
// The gradients of several parameters lie side by side in a bucket, in memory that the
// group reduces where it lies; a parameter's gradient is a view of it. A bucket is sent as
// soon as its last gradient is complete, in the order of the buckets on every rank. Sums
// follow the group's specified tree, element by element, so that neither buckets nor their
// order change a bit. Gradients are summed, never averaged: the loss was divided by the
// count of the whole step.
//
// A Hook may replace a bucket's sum: BF16Compress halves the bytes and gives up the promise
// of the same bits on any number of ranks.
//
// The package does not know where gradients come from: accelerate tells it which are
// complete. It does not cut models or optimizer state into shards.
package ddp
