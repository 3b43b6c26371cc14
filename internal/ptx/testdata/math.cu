// SPDX-License-Identifier: Apache-2.0
// Elementwise mathematics, Philox, conversions, device functions with calls, local arrays, atomics.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// unary applies function f to x.
extern "C" __global__ void unary(const float *x, float *y, int n, int f) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i], r = 0;
  switch (f) {
    case 0: r = expf(v); break;
    case 1: r = logf(v); break;
    case 2: r = tanhf(v); break;
    case 3: r = erff(v); break;
    case 4: r = sinf(v); break;
    case 5: r = cosf(v); break;
    case 6: r = sqrtf(v); break;
    case 7: r = 1 / v; break;
    case 8: r = rsqrtf(v); break;
    case 9: r = powf(v, 1.7f); break;
    case 10: r = floorf(v); break;
    case 11: r = rintf(v); break;
    case 12: r = log1pf(v); break;
    case 13: r = expm1f(v); break;
    case 14: r = v / 3.3f; break;
    case 15: r = fmodf(v, 0.7f); break;
  }
  y[i] = r;
}

extern "C" __global__ void unary64(const double *x, double *y, int n, int f) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double v = x[i], r = 0;
  switch (f) {
    case 0: r = exp(v); break;
    case 1: r = log(v); break;
    case 2: r = tanh(v); break;
    case 3: r = erf(v); break;
    case 4: r = sin(v); break;
    case 5: r = cos(v); break;
    case 6: r = sqrt(v); break;
    case 7: r = 1 / v; break;
    case 8: r = rsqrt(v); break;
    case 9: r = pow(v, 1.7); break;
  }
  y[i] = r;
}

// halves converts to both half types, computes in them, and back.
extern "C" __global__ void halves(const float *x, __half *h, __nv_bfloat16 *b, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  h[i] = __float2half_rn(x[i]);
  b[i] = __float2bfloat16(x[i]);
  __half2 hh = __floats2half2_rn(x[i], x[n - 1 - i]);
  __nv_bfloat162 bb = __floats2bfloat162_rn(x[i], x[n - 1 - i]);
  hh = __hfma2(hh, hh, hh);
  bb = __hfma2(bb, bb, bb);
  __half one = __hadd(h[i], h[i]);
  __nv_bfloat16 two = __hmul(b[i], b[i]);
  y[i] = __low2float(hh) + __high2float(hh) + __low2float(bb) + __high2float(bb) + __half2float(one) +
         __bfloat162float(two);
}

__device__ static void philoxRound(uint32_t c[4], uint32_t k0, uint32_t k1) {
  uint32_t h0 = __umulhi(0xD2511F53u, c[0]), l0 = 0xD2511F53u * c[0];
  uint32_t h1 = __umulhi(0xCD9E8D57u, c[2]), l1 = 0xCD9E8D57u * c[2];
  c[0] = h1 ^ c[1] ^ k0;
  c[1] = l1;
  c[2] = h0 ^ c[3] ^ k1;
  c[3] = l0;
}

// philox writes four words for each counter.
extern "C" __global__ void philox(uint4 *out, uint64_t key, uint64_t first, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint64_t at = first + i;
  uint32_t c[4] = {(uint32_t)at, (uint32_t)(at >> 32), 0, 0};
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
  for (int r = 0; r < 10; r++) {
    philoxRound(c, k0, k1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[i] = make_uint4(c[0], c[1], c[2], c[3]);
}

__device__ __noinline__ int collatz(long long v, int *steps) {
  int n = 0;
  while (v != 1) {
    v = v & 1 ? 3 * v + 1 : v / 2;
    n++;
  }
  *steps += n;
  return n;
}

__device__ int table[4] = {3, 1, 4, 1};
__constant__ float weights[4] = {0.5f, 0.25f, 0.125f, 0.0625f};

// calls uses a device function, a local array with a dynamic index, and module variables.
extern "C" __global__ void calls(const int *x, int *y, float *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int local[16], steps = 0;
  for (int k = 0; k < 16; k++) local[k] = k * x[i];
  int a = collatz(x[i], &steps);
  local[a & 15] += table[a & 3];
  int s = 0;
  for (int k = 0; k < 16; k++) s = s * 31 + local[(k * 7 + a) & 15];
  y[i] = s + steps;
  z[i] = weights[x[i] & 3];
}

// histogram counts bytes with atomics in shared, then in global memory; extremes by atomicMin and atomicMax.
extern "C" __global__ void histogram(const uint8_t *x, unsigned *bins, int *extremes, unsigned long long *total, int n) {
  __shared__ unsigned mine[256];
  for (int k = threadIdx.x; k < 256; k += blockDim.x) mine[k] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&mine[x[i]], 1u);
    atomicMin(&extremes[0], (int)x[i]);
    atomicMax(&extremes[1], (int)x[i]);
  }
  __syncthreads();
  for (int k = threadIdx.x; k < 256; k += blockDim.x)
    if (mine[k]) {
      atomicAdd(&bins[k], mine[k]);
      atomicAdd(total, (unsigned long long)mine[k]);
    }
}

// warp exercises shuffles, votes and reductions; 32 threads.
extern "C" __global__ void warp(const int *x, int *y) {
  int lane = threadIdx.x & 31, v = x[threadIdx.x];
  int *out = y + threadIdx.x * 10;
  out[0] = __shfl_sync(0xffffffffu, v, (lane * 3) & 31);
  out[1] = __shfl_up_sync(0xffffffffu, v, 3);
  out[2] = __shfl_down_sync(0xffffffffu, v, 5, 16);
  out[3] = __shfl_xor_sync(0xffffffffu, v, 9);
  out[4] = __ballot_sync(0xffffffffu, v & 1);
  out[5] = __any_sync(0xffffffffu, v == 7) * 2 + __all_sync(0xffffffffu, v < 1000);
  out[6] = __reduce_add_sync(0xffffffffu, v);
  out[7] = __reduce_min_sync(0xffffffffu, v);
  out[8] = __popc(v) + __clz(v) + __ffs(v) + __brev(v);
  if (lane < 16) out[9] = __shfl_xor_sync(0x0000ffffu, v, 1);
  else out[9] = __match_any_sync(0xffff0000u, v & 3);
}

// sort is a bitonic sort of one block's pairs by key, then index.
extern "C" __global__ void sort(int64_t *keys, int *order, int n) {
  extern __shared__ int64_t k[];
  int *o = (int *)(k + blockDim.x);
  int i = threadIdx.x;
  k[i] = i < n ? keys[i] : INT64_MAX;
  o[i] = i;
  for (int size = 2; size <= blockDim.x; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      int j = i ^ stride;
      if (j > i) {
        bool up = (i & size) == 0;
        bool less = k[j] < k[i] || (k[j] == k[i] && o[j] < o[i]);
        if (less == up) {
          int64_t t = k[i]; k[i] = k[j]; k[j] = t;
          int u = o[i]; o[i] = o[j]; o[j] = u;
        }
      }
    }
  __syncthreads();
  if (i < n) {
    keys[i] = k[i];
    order[i] = o[i];
  }
}
