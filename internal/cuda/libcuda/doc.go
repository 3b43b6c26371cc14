// SPDX-License-Identifier: Apache-2.0

// Package libcuda is CUDA's driver, cuBLASLt and cuDNN, which it opens when the program runs: libcuda.so.1, which comes
// with NVIDIA's driver, libcublasLt.so.13 or .12, which comes with the toolkit (or stands in LOCKSTEP_CUBLASLT), and
// libcudnn.so.9 (or LOCKSTEP_CUDNN), without which convolutions are products. It is built with the tag cuda, on Linux.
// Without the tag the package is empty, and programs stay static.
//
// Programs import tensor/cuda. Tests of what lies above use internal/cuda/fake.
package libcuda
