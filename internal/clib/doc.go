// SPDX-License-Identifier: Apache-2.0

// Package clib opens libraries of C when the program runs, without cgo: what the packages that wrap one (MPI, CUDA,
// NCCL, NVML) have in common over purego. It is empty without a tag that brings such a package (mpi, cuda), so that
// programs stay static.
package clib
