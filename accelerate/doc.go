// Package accelerate is where device, precision and parallel strategy are chosen and
// meet: the trainer and hand-written loops above it do not know which they run on.
//
// An Accelerator owns the rank's tensor context, cuts the training stream for the rank,
// runs backward passes so that gradients add up in an order that does not depend on the
// number of ranks, exchanges them (see accelerate/ddp), and lets the ranks agree on
// decisions. Ranks are goroutines of one process (Replicas) or processes that a launcher
// started (Open); Run is both for a loop of one's own.
//
// It knows nothing of schedules, logging or checkpoints, and starts no processes: that is
// accelerate/launch.
package accelerate
