// SPDX-License-Identifier: Apache-2.0

package accelerate

// SetKernels makes the rank say that it computes with other kernels than it does.
func SetKernels(a *Accelerator, name string) { a.kernels = name }
