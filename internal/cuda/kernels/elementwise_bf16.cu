// SPDX-License-Identifier: Apache-2.0

#include "elementwise.cuh"

#define BOTH(NAME, INS, BYTES) CONTIGUOUS(NAME, INS, BYTES, bf16) STRIDED(NAME, INS, bf16, f64)
#define COMPARED(NAME) COMPARE(NAME, bf16)

FLOAT_OPS(BOTH)
TESTS(COMPARED)
ADDS(bf16)
PAIRS(bf16, 4)
