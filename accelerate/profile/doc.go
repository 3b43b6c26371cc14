// Package profile records some steps of a training run on one rank: every kernel, the phases of a step, the waits for data and the
// collective calls. It writes them as a Chrome trace (chrome://tracing, Perfetto), as a table of kernels with their rates and the share of what the device
// was measured to reach, and as a CPU profile whose samples are labelled with kernels (go tool pprof).
//
// It stands below accelerate, as HuggingFace's accelerator.profile does, since it joins the tensors' tracer with the accelerator's; the
// trainer turns it on with --profile, a loop of one's own by hand. It is NOT a monitor: it slows the steps that it records down by
// some microseconds per kernel and keeps nothing of the others. See docs/profiling.md.
package profile
