// SPDX-License-Identifier: Apache-2.0
// Causal attention, head size 64, bfloat16, online softmax: 4 warps of 16 queries, keys and values in tiles of 64
// that cp.async brings while the tile before is used. Grid: (query tiles, heads).

#include <cuda_bf16.h>
#include <stdint.h>

constexpr int D = 64, TILE = 64, PITCH = D + 8;

__device__ static uint32_t sharedAddress(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ static void copy16(void *to, const void *from, bool in) {
  int size = in ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sharedAddress(to)), "l"(from), "r"(size));
}

__device__ static void ldmatrix4(uint32_t r[4], const void *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(sharedAddress(p)));
}

__device__ static void ldmatrix4t(uint32_t r[4], const void *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(sharedAddress(p)));
}

__device__ static void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ static uint32_t pack(float a, float b) {
  __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
  return *(uint32_t *)&h;
}

__device__ static void load(__nv_bfloat16 *to, const __nv_bfloat16 *from, int first, int t) {
  for (int i = threadIdx.x; i < TILE * D / 8; i += blockDim.x) {
    int r = i / (D / 8), c = i % (D / 8) * 8;
    bool in = first + r < t;
    copy16(to + r * PITCH + c, from + (size_t)(in ? first + r : 0) * D + c, in);
  }
}

extern "C" __global__ void __launch_bounds__(128)
flash(const __nv_bfloat16 *q, const __nv_bfloat16 *k, const __nv_bfloat16 *v, __nv_bfloat16 *out, float *lse, int t,
      float scale) {
  __shared__ __align__(16) __nv_bfloat16 ks[2][TILE * PITCH];
  __shared__ __align__(16) __nv_bfloat16 vs[2][TILE * PITCH];
  size_t head = (size_t)blockIdx.y * t * D;
  q += head, k += head, v += head, out += head;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * TILE;

  load(ks[0], q, first, t);
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  uint32_t a[D / 16][4];
  for (int i = 0; i < D / 16; i++) ldmatrix4(a[i], ks[0] + (warp * 16 + lane % 16) * PITCH + i * 16 + lane / 16 * 8);
  __syncthreads();

  float o[D / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
  int tiles = blockIdx.x + 1;
  load(ks[0], k, 0, t);
  load(vs[0], v, 0, t);
  asm volatile("cp.async.commit_group;");
  for (int n = 0; n < tiles; n++) {
    int now = n & 1;
    if (n + 1 < tiles) {
      load(ks[now ^ 1], k, (n + 1) * TILE, t);
      load(vs[now ^ 1], v, (n + 1) * TILE, t);
    }
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    float s[TILE / 8][4] = {};
    for (int i = 0; i < D / 16; i++)
      for (int j = 0; j < TILE / 16; j++) {
        uint32_t b[4];
        ldmatrix4(b, ks[now] + (j * 16 + lane % 8 + lane / 16 * 8) * PITCH + i * 16 + lane / 8 % 2 * 8);
        mma(s[2 * j], a[i], b[0], b[1]);
        mma(s[2 * j + 1], a[i], b[2], b[3]);
      }
    for (int half = 0; half < 2; half++) {
      int row = first + warp * 16 + half * 8 + lane / 4;
      float top = m[half];
      for (int j = 0; j < TILE / 8; j++)
        for (int e = 0; e < 2; e++) {
          int col = n * TILE + j * 8 + lane % 4 * 2 + e;
          float *x = &s[j][half * 2 + e];
          *x = col <= row && col < t ? *x * scale : -INFINITY;
          top = fmaxf(top, *x);
        }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      float was = __expf(m[half] - top), sum = 0;
      m[half] = top;
      for (int j = 0; j < TILE / 8; j++)
        for (int e = 0; e < 2; e++) {
          float *x = &s[j][half * 2 + e];
          *x = __expf(*x - top);
          sum += *x;
        }
      l[half] = l[half] * was + sum;
      for (int j = 0; j < D / 8; j++) o[j][half * 2] *= was, o[j][half * 2 + 1] *= was;
    }
    for (int i = 0; i < TILE / 16; i++) {
      uint32_t p[4] = {pack(s[2 * i][0], s[2 * i][1]), pack(s[2 * i][2], s[2 * i][3]),
                       pack(s[2 * i + 1][0], s[2 * i + 1][1]), pack(s[2 * i + 1][2], s[2 * i + 1][3])};
      for (int j = 0; j < D / 16; j++) {
        uint32_t b[4];
        ldmatrix4t(b, vs[now] + (i * 16 + lane % 16) * PITCH + j * 16 + lane / 16 * 8);
        mma(o[2 * j], p, b[0], b[1]);
        mma(o[2 * j + 1], p, b[2], b[3]);
      }
    }
    __syncthreads();
  }
  for (int half = 0; half < 2; half++) {
    int row = first + warp * 16 + half * 8 + lane / 4;
    float sum = l[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (row >= t) continue;
    float inv = 1 / sum;
    for (int j = 0; j < D / 8; j++)
      *(uint32_t *)(out + (size_t)row * D + j * 8 + lane % 4 * 2) = pack(o[j][half * 2] * inv, o[j][half * 2 + 1] * inv);
    if (lane % 4 == 0) lse[(size_t)blockIdx.y * t + row] = m[half] + logf(sum);
  }
}
