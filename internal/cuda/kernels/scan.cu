// SPDX-License-Identifier: Apache-2.0

// Row kernels of prefixes and of order: OpCumSum, OpTopK.

#include "lockstep.cuh"

template <class T> struct SumOf { typedef f64 type; };
template <> struct SumOf<i32> { typedef i64 type; };
template <> struct SumOf<i64> { typedef i64 type; };

// cumsum adds each row up in order, forward or backward. A warp takes a row, 32 elements at a time: its first lane adds
// them one by one.
template <class T> DEVICE void cumsum(T *out, const T *x, u64 rows, u64 cols, bool backward) {
  typedef typename SumOf<T>::type S;
  __shared__ S tiles[4][32];
  S *tile = tiles[threadIdx.x / 32];
  u32 lane = threadIdx.x % 32;
  for (u64 row = thread_index() / 32; row < rows; row += thread_count() / 32) {
    S sum = 0;
    for (u64 base = 0; base < cols; base += 32) {
      u64 i = base + lane, at = row * cols + (backward ? cols - 1 - i : i);
      tile[lane] = i < cols ? (S)widen(x[at]) : 0;
      __syncwarp();
      if (lane == 0) {
#pragma unroll 8
        for (int l = 0; l < 32; l++) tile[l] = sum += tile[l];
      }
      __syncwarp();
      if (i < cols) out[at] = narrow<T>((Wide<T>)tile[lane]);
      __syncwarp();
    }
  }
}

// key_of maps a number to an unsigned one of the same order, in which all NaN are one and the largest, and −0 is 0.
DEVICE u32 key_of(f32 x) {
  u32 b = __float_as_uint(x == 0 ? 0 : x);
  return x != x ? 0xffffffffu : b >> 31 ? ~b : b | 0x80000000u;
}
DEVICE u64 key_of(f64 x) {
  u64 b = (u64)__double_as_longlong(x == 0 ? 0 : x);
  return x != x ? ~0ull : b >> 63 ? ~b : b | 1ull << 63;
}
DEVICE u32 key_of(i32 x) { return (u32)x ^ 0x80000000u; }
DEVICE u64 key_of(i64 x) { return (u64)x ^ 1ull << 63; }

template <class T> struct KeyOf { typedef u32 type; };
template <> struct KeyOf<f64> { typedef u64 type; };
template <> struct KeyOf<i64> { typedef u64 type; };

template <class K> struct Item { K key, index; };
template <class K> DEVICE bool before(const Item<K> &a, const Item<K> &b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}

// block_sum adds x over the block; every thread gets the sum.
DEVICE u32 block_sum(u32 x, u32 *warps) {
  x = warp_sum(x);
  if (blockDim.x == 32) return x;
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (u32 w = 0; w < blockDim.x / 32; w++) x += warps[w];
  __syncthreads();
  return x;
}

// block_prefix adds x over the threads before this one, and sets total.
DEVICE u32 block_prefix(bool x, u32 *warps, u32 &total) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, votes = __ballot_sync(0xffffffffu, x);
  u32 prefix = __popc(votes & ((1u << lane) - 1));
  total = __popc(votes);
  if (blockDim.x == 32) return prefix;
  if (lane == 0) warps[warp] = total;
  __syncthreads();
  total = 0;
  for (u32 w = 0; w < blockDim.x / 32; w++) {
    if (w < warp) prefix += warps[w];
    total += warps[w];
  }
  __syncthreads();
  return prefix;
}

// sort is bitonic (Batcher 1968): m items, a power of two, in order of `before`.
template <class K> DEVICE void sort(Item<K> *items, u32 m) {
  for (u32 size = 2; size <= m; size *= 2)
    for (u32 stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (u32 i = threadIdx.x; i < m / 2; i += blockDim.x) {
        u32 a = i / stride * stride * 2 + i % stride, b = a + stride;
        bool down = (a & size) != 0;
        Item<K> p = items[a], q = items[b];
        if (before(q, p) != down) {
          items[a] = q;
          items[b] = p;
        }
      }
    }
  __syncthreads();
}

// topk: a block takes a row. The least key that is taken is found bit by bit, by counting; those above it and the first
// ones equal to it become items, which are sorted. m is the power of two from k on.
template <class T>
DEVICE void topk(T *out, i64 *index, const T *x, u32 rows, u32 cols, u32 k, u32 m, bool smallest,
                 Item<typename KeyOf<T>::type> *items, u32 *warps) {
  typedef typename KeyOf<T>::type K;
  const K flip = smallest ? ~(K)0 : 0;
  for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T *in = x + (u64)row * cols;
    K least = 0;
    for (K bit = (K)1 << (sizeof(K) * 8 - 1); bit != 0; bit >>= 1) {
      u32 n = 0;
#pragma unroll 4
      for (u32 i = threadIdx.x; i < cols; i += blockDim.x) n += (key_of(widen(in[i])) ^ flip) >= (least | bit);
      if (block_sum(n, warps) >= k) least |= bit;
    }
    u32 n = 0;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) n += (key_of(widen(in[i])) ^ flip) > least;
    u32 above = block_sum(n, warps), ties = above, found = 0;
    for (u32 base = 0; base < cols; base += blockDim.x) {
      u32 i = base + threadIdx.x, total;
      K key = i < cols ? key_of(widen(in[i])) ^ flip : 0;
      bool more = i < cols && key > least, tie = i < cols && key == least;
      u32 at = found + block_prefix(more, warps, total);
      found += total;
      if (more) items[at] = {key, (K)i};
      at = ties + block_prefix(tie, warps, total);
      ties += total;
      if (tie && at < k) items[at] = {key, (K)i};
    }
    for (u32 i = k + threadIdx.x; i < m; i += blockDim.x) items[i] = {0, ~(K)0};
    sort(items, m);
    for (u32 i = threadIdx.x; i < k; i += blockDim.x) {
      K at = items[i].index;
      out[(u64)row * k + i] = in[at];
      index[(u64)row * k + i] = (i64)at;
    }
    __syncthreads();
  }
}

// Up to this many items are sorted in shared memory, more in scratch: m for each block.
#define SHARED_ITEMS 2048

#define SCAN(T)                                                                                                    \
  KERNEL cumsum_##T(T *out, const T *x, u64 rows, u64 cols, u32 backward) { cumsum(out, x, rows, cols, backward); } \
  KERNEL topk_##T(T *out, i64 *index, const T *x, u32 rows, u32 cols, u32 k, u32 m, u32 smallest) {                \
    __shared__ Item<KeyOf<T>::type> items[SHARED_ITEMS];                                                           \
    __shared__ u32 warps[32];                                                                                      \
    topk(out, index, x, rows, cols, k, m, smallest, items, warps);                                                 \
  }                                                                                                                \
  KERNEL topk_large_##T(T *out, i64 *index, const T *x, u32 rows, u32 cols, u32 k, u32 m, u32 smallest,            \
                        Item<KeyOf<T>::type> *items) {                                                             \
    __shared__ u32 warps[32];                                                                                      \
    topk(out, index, x, rows, cols, k, m, smallest, items + (u64)blockIdx.x * m, warps);                           \
  }
SCAN(f32)
SCAN(f64)
SCAN(bf16)
SCAN(f16)
SCAN(i32)
SCAN(i64)
