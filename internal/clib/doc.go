// SPDX-License-Identifier: Apache-2.0

// Package clib loads C libraries at run time without cgo (by purego), for the packages that wrap MPI, CUDA, NCCL and
// NVML. It is empty without a tag that brings one of these packages (mpi, cuda), so that programs stay static.
package clib
