// SPDX-License-Identifier: Apache-2.0

// Operands that hold indices, of int32 or int64, and what becomes of one out of range.

#pragma once

#include <stdint.h>

// FaultBlock is where a stream's first fault waits for the host: state 0 is none.
struct FaultBlock {
  uint32_t state, op;
  int64_t value, limit, where;
};

// Indices are the elements of an operand.
struct Indices {
  const void *p;
  int wide;  // int64
  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t *>(p)[i] : static_cast<const int32_t *>(p)[i];
  }
};

// Range is [0, limit), and what else an index may be.
struct Range {
  int64_t limit;
  int skipping;
  int64_t skip;
  __device__ bool bad(int64_t v) const { return (v < 0 || v >= limit) && !(skipping && v == skip); }
};

// indexFault is called by a thread that has met a bad index. The one that is reported is the first of the operand,
// whoever comes first.
__device__ inline void indexFault(FaultBlock *f, uint32_t op, Indices ids, Range range) {
  if (atomicCAS(&f->state, 0u, 1u) != 0) return;
  int64_t i = 0;
  while (!range.bad(ids[i])) i++;
  f->op = op;
  f->value = ids[i];
  f->limit = range.limit;
  f->where = i;
}
