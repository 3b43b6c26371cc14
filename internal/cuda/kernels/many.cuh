// SPDX-License-Identifier: Apache-2.0

// Lists of contiguous operands, which one launch works on: an optimizer's step has hundreds. The parameter block holds
// the list, so that there is nothing to upload.

#pragma once
#include "lockstep.cuh"

#define LIST 64

// List is up to LIST operands, or groups of operands of one size, cut into chunks: chunks first[i] and on belong to
// operand i.
template <int OPERANDS> struct List {
  u32 count, wide;      // wide: all are aligned
  u32 chunk;            // elements
  u32 first[LIST + 1];  // first[count] is the number of chunks
  u64 n[LIST];          // elements
  void *at[OPERANDS][LIST];
};

// Part is what a chunk stands for: n elements of operand i.
struct Part {
  u32 i;
  u64 begin, n;
};

template <class L> DEVICE Part part_of(const L &list, u32 chunk) {
  u32 low = 0, high = list.count;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (list.first[middle] <= chunk)
      low = middle;
    else
      high = middle;
  }
  u64 begin = (u64)(chunk - list.first[low]) * list.chunk;
  return {low, begin, min(list.n[low] - begin, (u64)list.chunk)};
}
