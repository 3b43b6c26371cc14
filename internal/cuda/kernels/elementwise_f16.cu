// SPDX-License-Identifier: Apache-2.0

#include "elementwise.cuh"

#define BOTH(NAME, INS, BYTES) CONTIGUOUS(NAME, INS, BYTES, f16) STRIDED(NAME, INS, f16, f64)
#define COMPARED(NAME) COMPARE(NAME, f16)

FLOAT_OPS(BOTH)
TESTS(COMPARED)
PAIRS(f16, 4)
