// SPDX-License-Identifier: Apache-2.0
// Layer norm, softmax and cross entropy: one block for each row.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ static double blockSum(double v, double *partial) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  __syncthreads();
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  double s = 0;
  for (int i = 0; i < warps; i++) s += partial[i];
  return s;
}

__device__ static float blockMax(float v, float *partial) {
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_down_sync(0xffffffffu, v, o));
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  __syncthreads();
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  float m = partial[0];
  for (int i = 1; i < warps; i++) m = fmaxf(m, partial[i]);
  return m;
}

// layer_norm: y = (x - mean) / sqrt(var + eps) * w + b over rows of n.
extern "C" __global__ void layer_norm(const float *x, const float *w, const float *b, float *y, float *stats,
                                      int n, float eps) {
  __shared__ double partial[32];
  const float *row = x + (size_t)blockIdx.x * n;
  float *out = y + (size_t)blockIdx.x * n;
  double s = 0, q = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += row[i];
  double mean = blockSum(s, partial) / n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    double d = row[i] - mean;
    q += d * d;
  }
  double rstd = 1 / sqrt(blockSum(q, partial) / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    out[i] = (float)((row[i] - mean) * rstd) * w[i] + b[i];
  if (threadIdx.x == 0) {
    stats[2 * blockIdx.x] = (float)mean;
    stats[2 * blockIdx.x + 1] = (float)rstd;
  }
}

// softmax over rows of n, float16 in and out.
extern "C" __global__ void softmax_f16(const __half *x, __half *y, int n) {
  __shared__ float partialMax[32];
  __shared__ double partial[32];
  const __half *row = x + (size_t)blockIdx.x * n;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, __half2float(row[i]));
  m = blockMax(m, partialMax);
  double s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(__half2float(row[i]) - m);
  s = blockSum(s, partial);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[(size_t)blockIdx.x * n + i] = __float2half_rn((float)(expf(__half2float(row[i]) - m) / s));
}

// cross_entropy: losses and gradients of bfloat16 logits; a bad target goes to fault by compare and swap.
extern "C" __global__ void cross_entropy(const __nv_bfloat16 *x, const int64_t *targets, float *loss,
                                         __nv_bfloat16 *grad, unsigned long long *fault, int n, float scale) {
  __shared__ float partialMax[32];
  __shared__ double partial[32];
  const __nv_bfloat16 *row = x + (size_t)blockIdx.x * n;
  int64_t t = targets[blockIdx.x];
  if (t < 0 || t >= n) {
    if (threadIdx.x == 0) atomicCAS(fault, 0ull, (unsigned long long)t + 1);
    return;
  }
  float m = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, __bfloat162float(row[i]));
  m = blockMax(m, partialMax);
  double s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(__bfloat162float(row[i]) - m);
  s = blockSum(s, partial);
  if (threadIdx.x == 0) loss[blockIdx.x] = (float)(log(s) + m - __bfloat162float(row[t]));
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float p = (float)(expf(__bfloat162float(row[i]) - m) / s);
    grad[(size_t)blockIdx.x * n + i] = __float2bfloat16((p - (i == t ? 1.f : 0.f)) * scale);
  }
}
