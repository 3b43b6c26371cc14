// SPDX-License-Identifier: Apache-2.0

// Package profile records some steps of a training run on one rank: every kernel, the phases of a step, the waits for
// data and the collective calls. With package trainer the argument profile turns it on (--profile). Use the package in
// your own training loop: make a [Profiler] with [New], and call its Start and Step.
//
// It writes a Chrome trace (chrome://tracing, Perfetto), a table of kernels with their rates and shares of the device's
// measured ceilings, and a CPU profile whose samples are labelled with kernels (go tool pprof). docs/profiling.md shows
// how to read them.
//
// The package is not a monitor: it slows the recorded steps by some microseconds per kernel, and records no others.
package profile
