// SPDX-License-Identifier: Apache-2.0

// Package ptx interprets NVIDIA's PTX, the text that a CUDA compiler emits, so that kernels can be run, checked and
// compared with reference numbers on a machine without a GPU. Use it in tests of kernels and behind a driver that
// stands in for CUDA; nothing in it calls CUDA.
//
// [Parse] reads a module, [Module.Kernel] links one of its kernels, [NewMemory] is a device's address space and
// [Kernel.Run] launches a grid. A warp executes each instruction for its 32 lanes together; lanes that part meet again
// where their paths join. Warps of a block run one after the other between barriers, in an order that [Launch].Seed
// chooses.
//
// A launch ends with a [*Fault], which names the line of the PTX text, the block and the thread, when a kernel reads
// registers or memory that nothing has written, accesses memory out of bounds, misaligned or freed, lets two warps
// access shared memory without a barrier between, lets two blocks access the same bytes of global memory (with
// [Launch].CheckRaces), waits at a barrier that cannot complete, or runs for too long.
//
// Arithmetic is IEEE 754 and bits are those of the hardware, with three exceptions, where the hardware's bits are not
// defined: the approximations (ex2.approx and others) are computed in float64 and rounded once, mma adds the products
// in float64 and rounds once, and atomics happen in an order of our own. The instructions are those that nvcc emits for
// compute_80. Source: NVIDIA, "PTX ISA", version 9.0.
package ptx
