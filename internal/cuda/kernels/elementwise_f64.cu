// SPDX-License-Identifier: Apache-2.0

// A load of 8 bytes by each thread is wide enough: float64 has no kernels of its own for contiguous operands.

#include "elementwise.cuh"

#define ANY(NAME, INS, BYTES) STRIDED(NAME, INS, f64, f64)
#define COMPARED(NAME) COMPARE(NAME, f64)

FLOAT_OPS(ANY)
TESTS(COMPARED)
PAIRS(f64, 1)
