// SPDX-License-Identifier: Apache-2.0

// Strided views of up to six dims. The host joins neighbours that all operands walk as one, cuts what has 2^31 elements
// or more into several launches, and prepares the divisions.

#pragma once
#include "lockstep.cuh"

// Dims is a walk over up to four operands of one shape, in row-major order; the innermost dim is number 0.
struct Dims {
  u32 n;        // elements, below 2^31
  u32 nd;       // at least 1
  u32 size[6];
  u32 mul[6];   // i / size = (mulhi(i, mul) + i) >> shift, for i < 2^31 (Granlund & Montgomery 1994)
  u32 shift[6];
  i64 stride[4][6];  // in elements
};

// offsets sets where element i of each operand lies.
template <int OPS> DEVICE void offsets(const Dims &d, u32 i, i64 (&at)[OPS]) {
#pragma unroll
  for (int k = 0; k < OPS; k++) at[k] = 0;
  u32 last = d.nd - 1;
#pragma unroll 1
  for (u32 j = 0; j < last; j++) {
    u32 q = (__umulhi(i, d.mul[j]) + i) >> d.shift[j];
    u32 r = i - q * d.size[j];
#pragma unroll
    for (int k = 0; k < OPS; k++) at[k] += r * d.stride[k][j];
    i = q;
  }
#pragma unroll
  for (int k = 0; k < OPS; k++) at[k] += i * d.stride[k][last];
}
