// SPDX-License-Identifier: Apache-2.0

// What the gradients of attention need of its result, whichever kernels make them: a family of its own, since flash.cu's
// run without attention.cu's.

#include "attention.cuh"
#include "rows.cuh"

// lanes_of is how many threads of a warp share a row of n elements: one for each chunk of 16 bytes, up to a power of two.
template <class T> DEVICE int lanes_of(int n) {
  int chunks = chunks_of(n, CHUNK<T>), lanes = 1;
  while (lanes < 32 && lanes < chunks) lanes *= 2;
  return lanes;
}

// delta: Σ dout·out for each row of [batch, head, query]. The order of the sum follows from the row's length.
template <class T> DEVICE void delta(const AttentionArgs &a) {
  typedef Sum<T> S;
  typedef Wide<T> A;
  constexpr int K = CHUNK<T>;
  int lanes = lanes_of<T>(a.dvalue), lane = threadIdx.x % lanes;
  u64 row = (u64)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
  bool in = row < (u64)a.batch * a.heads * a.tq;
  S sum = 0;
  if (in) {
    i64 i = row % (u32)a.tq, h = row / (u32)a.tq % (u32)a.heads, b = row / (u32)a.tq / (u32)a.heads;
    const T *out = (const T *)a.out + b * a.os[0] + h * a.os[1] + i * a.os[2];
    const T *dout = (const T *)a.dout + b * a.dos[0] + h * a.dos[1] + i * a.dos[2];
    bool wide = aligned16(out), dwide = aligned16(dout);
    for (int c = lane; c < chunks_of(a.dvalue, K); c += lanes) {
      A y[K], dy[K];
      load_chunk(y, out, c, a.dvalue, wide, (A)0);
      load_chunk(dy, dout, c, a.dvalue, dwide, (A)0);
#pragma unroll
      for (int k = 0; k < K; k++) sum = fma((S)dy[k], (S)y[k], sum);
    }
  }
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (in && lane == 0) ((A *)a.delta)[row] = (A)sum;
}

#define DELTA(T) \
  KERNEL attention_delta_##T(const __grid_constant__ AttentionArgs a) { delta<T>(a); }

DELTA(f32)
DELTA(f64)
DELTA(bf16)
DELTA(f16)
