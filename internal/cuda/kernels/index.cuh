// SPDX-License-Identifier: Apache-2.0

// Operands that hold indices, of int32 or int64, and what becomes of one out of range.

#pragma once

#include "lockstep.cuh"

// Indices are the elements of an operand.
struct Indices {
  const void *p;
  int wide;  // int64
  __device__ i64 operator[](i64 i) const {
    return wide ? ((const i64 *)p)[i] : ((const i32 *)p)[i];
  }
};

// Range is [0, limit), and what else an index may be.
struct Range {
  i64 limit;
  int skipping;
  i64 skip;
  __device__ bool bad(i64 v) const { return (v < 0 || v >= limit) && !(skipping && v == skip); }
};

// index_fault is called by a thread that has met a bad index. What is reported is the first one of the operand,
// whichever thread comes first.
DEVICE void index_fault(FaultBlock *block, u32 op, Indices ids, Range range) {
  if (atomicCAS(&block->state, 0u, 1u) != 0u) return;
  i64 i = 0;
  while (!range.bad(ids[i])) i++;
  block->op = op;
  block->value = ids[i];
  block->limit = range.limit;
  block->where = i;
}
