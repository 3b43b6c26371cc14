// Package accelerate is where device, precision and parallel strategy are chosen and
// meet: the trainer and hand-written loops above it do not know which they run on.
//
// An Accelerator owns the rank's tensor context, cuts the training stream for the rank,
// runs backward passes so that gradients add up in an order that does not depend on the
// number of ranks, and lets the ranks agree on decisions. Today it drives one rank on
// one device; the interface is the one that many ranks will have. It knows nothing of
// schedules, logging or checkpoints.
package accelerate
