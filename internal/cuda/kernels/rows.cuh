// SPDX-License-Identifier: Apache-2.0

// Row kernels: a row of a contiguous matrix is worked on by blockDim.x threads. Short rows have a warp each
// (blockDim.x = 32) and blockDim.y of them share a block; long rows have a block each (blockDim.y = 1). Which element a
// thread takes follows from the number of columns, the dtype and blockDim.x alone, never from the alignment, so that
// sums have one order for each shape.

#pragma once

#include "lockstep.cuh"

DEVICE f32 exponential(f32 v) { return expf(v); }
DEVICE f64 exponential(f64 v) { return exp(v); }
DEVICE f32 larger(f32 a, f32 b) { return fmaxf(a, b); }
DEVICE f64 larger(f64 a, f64 b) { return fmax(a, b); }

// CHUNK is the number of elements of 16 bytes, which a thread takes at once.
template <typename T> constexpr int CHUNK = 16 / sizeof(T);

DEVICE int chunks_of(int cols, int chunk) { return (cols + chunk - 1) / chunk; }

DEVICE bool aligned16(const void *p) { return ((u64)p & 15) == 0; }

// aligned reports whether p is where a thread may load n elements at once.
template <typename T, int n> DEVICE bool aligned(const T *p) { return ((u64)p & (alignof(Vec<T, n>) - 1)) == 0; }

// load reads chunk c, of n elements, of a row of cols elements, with fill beyond its end.
template <typename T, int n>
DEVICE void load_chunk(Wide<T> (&v)[n], const T *row, int c, int cols, bool aligned, Wide<T> fill) {
  const T *p = row + (i64)c * n;
  if (aligned && c * n + n <= cols) {
    Vec<T, n> all = load<n>(p);
#pragma unroll
    for (int i = 0; i < n; i++) v[i] = widen(all.v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < n; i++) v[i] = c * n + i < cols ? widen(p[i]) : fill;
}

// store writes chunk c of a row of cols elements.
template <typename T, int n>
DEVICE void store_chunk(T *row, int c, int cols, bool aligned, const Wide<T> (&v)[n]) {
  T *p = row + (i64)c * n;
  if (aligned && c * n + n <= cols) {
    Vec<T, n> all;
#pragma unroll
    for (int i = 0; i < n; i++) all.v[i] = narrow<T>(v[i]);
    store<n>(p, all);
    return;
  }
#pragma unroll
  for (int i = 0; i < n; i++)
    if (c * n + i < cols) p[i] = narrow<T>(v[i]);
}

// row_sum adds up what the threads of a row have; all get the sum.
DEVICE f64 row_sum(f64 v) {
  v = warp_sum(v);
  if (blockDim.x == 32) return v;
  __shared__ f64 part[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  __syncthreads();
  if (lane == 0) part[warp] = v;
  __syncthreads();
  v = lane < (int)(blockDim.x >> 5) ? part[lane] : 0;
  return warp_sum(v);
}

// row_max is the largest of what the threads of a row have.
template <typename A> DEVICE A row_max(A v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = larger(v, __shfl_xor_sync(0xffffffffu, v, o));
  if (blockDim.x == 32) return v;
  __shared__ A part[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  __syncthreads();
  if (lane == 0) part[warp] = v;
  __syncthreads();
  v = lane < (int)(blockDim.x >> 5) ? part[lane] : -INFINITY;
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = larger(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// row_index is the row of the calling thread.
DEVICE int row_index() { return blockIdx.x * blockDim.y + threadIdx.y; }
