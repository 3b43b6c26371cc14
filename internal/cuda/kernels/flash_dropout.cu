// SPDX-License-Identifier: Apache-2.0

// Attention on the matrix units, with dropout: a family of its own, since a run has one or the other.
#include "flash.cuh"

FLASH(flash_dropout, true)

// flash_keep draws dropout's decisions for the heads of a launch, for all three kernels above. Blocks are [head, 128
// queries, 128 keys], a thread for each query: the lanes of a warp see nearly the same keys, and write side by side. A
// thread draws for 32 elements at a time from a multiple of 32 on, so that a row's words may lie across two of them.
// Blocks of which nothing is seen are left as they are: the kernels above do not read them. In the others what is not
// seen is drawn only where the 32 elements have something that is.
KERNEL __launch_bounds__(128) flash_keep(const __grid_constant__ AttentionArgs a) {
  int rowTiles = keepRows(a) / 128, keyTiles = keepWords(a) / 4, block = blockIdx.x / rowTiles;
  int i0 = blockIdx.x % rowTiles * 128, j0 = block % keyTiles * 128, i = i0 + threadIdx.x;
  if (j0 >= endKey(a, i0 + 128) || j0 + 128 <= firstKey(a, i0)) return;
  Head head = headOf(a, block, keyTiles, a.heads);
  u32 *out = keepOf(a, head.number) + (i64)(j0 / 32) * keepRows(a) + i;
  int begin = firstKey(a, i), end = lesser(endKey(a, i + 1), j0 + 128);
  if (i >= a.tq || a.threshold >> 24) end = -32; // before all j
  u32 least = a.threshold << 8; // numbers are at least it if their upper 24 bits are at least the threshold
  u64 element = elementOf(a, head.h, i) + (u32)j0, position = a.position + head.b;
  u32 shift = (u32)element % 32, before = 0;
#pragma unroll 1
  for (int k = 0; k <= 4; k++, element += 32) {
    int j = j0 + 32 * k - (int)shift;
    u32 bits = 0;
    if (j < end && j + 32 > begin) {
      u64 block = element / 32 * 8;
#pragma unroll
      for (int x = 0; x < 8; x++) {
        uint4 words = philox(a.key, position, block | x);
        if (words.x >= least) bits |= 1u << 4 * x;
        if (words.y >= least) bits |= 2u << 4 * x;
        if (words.z >= least) bits |= 4u << 4 * x;
        if (words.w >= least) bits |= 8u << 4 * x;
      }
    }
    if (k > 0) {
      *out = (u32)(((u64)bits << 32 | before) >> shift);
      out += keepRows(a);
    }
    before = bits;
  }
}
