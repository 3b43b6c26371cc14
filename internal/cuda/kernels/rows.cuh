// SPDX-License-Identifier: Apache-2.0

// Row kernels: a row of a contiguous matrix is worked on by blockDim.x threads. Short rows have a warp each
// (blockDim.x = 32) and blockDim.y of them share a block; long rows have a block each (blockDim.y = 1). Which element a
// thread takes follows from the number of columns, the dtype and blockDim.x alone, never from the alignment, so that
// sums have one order for each shape.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace rows {

// Compute is the type that a dtype is computed in, and that its statistics have.
template <typename T> struct ComputeOf { using type = float; };
template <> struct ComputeOf<double> { using type = double; };
template <typename T> using Compute = typename ComputeOf<T>::type;

__device__ inline float widen(float v) { return v; }
__device__ inline double widen(double v) { return v; }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float widen(__half v) { return __half2float(v); }

template <typename T> __device__ inline T narrow(Compute<T> v);
template <> __device__ inline float narrow<float>(float v) { return v; }
template <> __device__ inline double narrow<double>(double v) { return v; }
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ inline __half narrow<__half>(float v) { return __float2half_rn(v); }

__device__ inline float exponential(float v) { return expf(v); }
__device__ inline double exponential(double v) { return exp(v); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }

// CHUNK is the number of elements of 16 bytes, which a thread takes at once.
template <typename T> constexpr int CHUNK = 16 / sizeof(T);

__device__ inline int chunksOf(int cols, int chunk) { return (cols + chunk - 1) / chunk; }

__device__ inline bool aligned16(const void *p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

// load reads chunk c of a row of cols elements, with fill beyond its end.
template <typename T>
__device__ inline void load(Compute<T> (&v)[CHUNK<T>], const T *row, int c, int cols, bool aligned, Compute<T> fill) {
  constexpr int n = CHUNK<T>;
  const T *p = row + (int64_t)c * n;
  if (aligned && c * n + n <= cols) {
    union { uint4 raw; T t[n]; } u;
    u.raw = *reinterpret_cast<const uint4 *>(p);
#pragma unroll
    for (int i = 0; i < n; i++) v[i] = widen(u.t[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < n; i++) v[i] = c * n + i < cols ? widen(p[i]) : fill;
}

// store writes chunk c of a row of cols elements.
template <typename T>
__device__ inline void store(T *row, int c, int cols, bool aligned, const Compute<T> (&v)[CHUNK<T>]) {
  constexpr int n = CHUNK<T>;
  T *p = row + (int64_t)c * n;
  if (aligned && c * n + n <= cols) {
    union { uint4 raw; T t[n]; } u;
#pragma unroll
    for (int i = 0; i < n; i++) u.t[i] = narrow<T>(v[i]);
    *reinterpret_cast<uint4 *>(p) = u.raw;
    return;
  }
#pragma unroll
  for (int i = 0; i < n; i++)
    if (c * n + i < cols) p[i] = narrow<T>(v[i]);
}

// rowSum adds up what the threads of a row have; all get the sum.
__device__ inline double rowSum(double v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  if (blockDim.x == 32) return v;
  __shared__ double part[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  __syncthreads();
  if (lane == 0) part[warp] = v;
  __syncthreads();
  v = lane < (int)(blockDim.x >> 5) ? part[lane] : 0;
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

// rowMax is the largest of what the threads of a row have.
template <typename A> __device__ inline A rowMax(A v) {
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

// rowIndex is the row of the calling thread.
__device__ inline int rowIndex() { return blockIdx.x * blockDim.y + threadIdx.y; }

}  // namespace rows
