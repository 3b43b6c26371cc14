// SPDX-License-Identifier: Apache-2.0

// Attention on the matrix units, with dropout: a family of its own, since a run has one or the other.
#include "flash.cuh"

FLASH(flash_dropout, true)

// flash_keep draws dropout's decisions for the heads of a launch, for all three kernels above. Blocks are [head, 128
// queries, 128 keys], a thread for each query: the lanes of a warp see nearly the same keys, and write side by side.
// What is not seen gets zeros and draws nothing.
KERNEL __launch_bounds__(128) flash_keep(const __grid_constant__ AttentionArgs a) {
  int rowTiles = keepRows(a) / 128, tiles = rowTiles * (keepWords(a) / 4);
  Head head = headOf(a, blockIdx.x, tiles, a.heads);
  int i = blockIdx.x % rowTiles * 128 + threadIdx.x, word = blockIdx.x / rowTiles % (keepWords(a) / 4) * 4;
  u32 *out = keepOf(a, head.number) + (i64)word * keepRows(a) + i;
  u32 least = a.threshold << 8; // bits are at least it if the upper 24 are at least the threshold
  bool none = a.threshold >> 24;
#pragma unroll 1
  for (int k = 0; k < 4; k++, out += keepRows(a)) {
    int j = (word + k) * 32;
    u32 bits = 0;
    if (!none && i < a.tq && j < endKey(a, i + 1) && j + 32 > firstKey(a, i)) {
      u64 e = elementOf(a, head.h, i) + (u32)j, block = e / 4;
      u32 shift = (u32)e % 4; // a block of Philox may begin before the word
      auto four = [&](u64 block) {
        uint4 x = philox(a.key, a.position + head.b, block);
        return (u32)(x.x >= least) | (u32)(x.y >= least) << 1 | (u32)(x.z >= least) << 2 | (u32)(x.w >= least) << 3;
      };
#pragma unroll 2
      for (int x = 0; x < 8; x++) bits |= four(block + x) << 4 * x;
      if (shift != 0) bits = bits >> shift | four(block + 8) << (32 - shift);
    }
    *out = bits;
  }
}
