// SPDX-License-Identifier: Apache-2.0
// AdamW over many tensors in one launch: a block finds its chunk in a table.

#include <cuda_bf16.h>
#include <stdint.h>

struct Tensor {
  float *w, *m, *v;
  const float *g;
  __nv_bfloat16 *half;
  long long n;
  float decay;
};

struct Chunk {
  int tensor, piece;
};

struct Step {
  float lr, b1, b2, eps, c1, c2;
};

extern "C" __global__ void __launch_bounds__(256) adamw(const Tensor *tensors, const Chunk *chunks, Step p) {
  Chunk c = chunks[blockIdx.x];
  Tensor t = tensors[c.tensor];
  long long at = (long long)c.piece * 1024;
  long long end = min(at + 1024, t.n);
  for (long long i = at + threadIdx.x; i < end; i += blockDim.x) {
    float g = t.g[i], w = t.w[i];
    float m = p.b1 * t.m[i] + (1 - p.b1) * g;
    float v = p.b2 * t.v[i] + (1 - p.b2) * (g * g);
    w -= p.lr * t.decay * w;
    w -= p.lr * ((m / p.c1) / (sqrtf(v / p.c2) + p.eps));
    t.w[i] = w;
    t.m[i] = m;
    t.v[i] = v;
    if (t.half) t.half[i] = __float2bfloat16(w);
  }
}
