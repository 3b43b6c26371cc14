// SPDX-License-Identifier: Apache-2.0

// Integers and bools. Arithmetic wraps. Bools are compared as uint8.

#include "elementwise.cuh"

#define I32(NAME, INS, BYTES) STRIDED(NAME, INS, i32, i64)
#define I64(NAME, INS, BYTES) STRIDED(NAME, INS, i64, i64)
#define U8(NAME, INS, BYTES) STRIDED(NAME, INS, u8, i64)
#define TEST_I32(NAME) COMPARE(NAME, i32)
#define TEST_I64(NAME) COMPARE(NAME, i64)
#define TEST_U8(NAME) COMPARE(NAME, u8)

INT_OPS(I32)
SIGNED_OPS(I32)
TESTS(TEST_I32)

INT_OPS(I64)
SIGNED_OPS(I64)
TESTS(TEST_I64)

INT_OPS(U8)
TESTS(TEST_U8)

COMPARE(and, b8)
COMPARE(or, b8)

KERNEL not_b8_strided(const __grid_constant__ Dims d, b8 *out, const b8 *x) {
  for (u64 i = thread_index(); i < d.n; i += thread_count()) {
    i64 at[2];
    offsets(d, (u32)i, at);
    out[at[0]] = b8{(u8)(x[at[1]].bits == 0)};
  }
}
