// SPDX-License-Identifier: Apache-2.0

#include "elementwise.cuh"

#define BOTH(NAME, INS, BYTES) CONTIGUOUS(NAME, INS, BYTES, f32) STRIDED(NAME, INS, f32, f64)
#define COMPARED(NAME) COMPARE(NAME, f32)

FLOAT_OPS(BOTH)
TESTS(COMPARED)
PAIRS(f32, 4)
