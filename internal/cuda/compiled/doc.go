// SPDX-License-Identifier: Apache-2.0

// Package compiled is a CUDA device whose kernels are the sources of internal/cuda/kernels, compiled for the CPU by a
// C++ compiler. Tests compare it with the reference, as they do internal/cuda/fake, which interprets the PTX: the two
// have nothing in common beyond the sources, so that a misreading of the PTX instruction set in one of them shows.
//
// A block's threads are fibres that switch where they wait for each other. For what the sources write in PTX, the
// package has functions in C++ (cpp/shim.h), which follow the tables of NVIDIA's description. It does not model the
// order in which memory becomes visible and the time that copies take, and it has no cuBLASLt and no cuDNN.
//
// It is built with the tag cuda, on Linux.
package compiled
