// SPDX-License-Identifier: Apache-2.0

// Package cuda holds no code but tests: they train on simulated GPUs (internal/cuda/fake), with the kernels that
// real ones run, and compare with the CPU.
package cuda
