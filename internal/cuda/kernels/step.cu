// SPDX-License-Identifier: Apache-2.0

// What an optimizer's step does to all tensors at once, with numbers that are on the device. A table on the device says
// where the tensors are; each block finds the one that it works on.

#include "adam.cuh"
#include "reduce.cuh"

// find is the last of the tensors whose first block is at most that of this block.
template <class E> DEVICE const E *find(const E *table, u32 count) {
  u32 low = 0, high = count;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (table[middle].first <= blockIdx.x) low = middle;
    else high = middle;
  }
  return table + low;
}

// Squares is one tensor of sum_sq_many.
struct Squares {
  f64 *out;
  const void *x;
  u64 n;
  u32 first, wide;
};

#define SUM_SQ_MANY(T)                                                                     \
  KERNEL sum_sq_many_##T(const Squares *table, u32 count) {                                \
    const Squares *e = find(table, count);                                                 \
    sum_sq(e->out, (const T *)e->x, e->n, e->wide, blockIdx.x - e->first);                 \
  }
SUM_SQ_MANY(f32)
SUM_SQ_MANY(f64)
SUM_SQ_MANY(bf16)
SUM_SQ_MANY(f16)

// Update is one tensor of adamw_many. The gradient's factor, and c₁, c₂, lr and decay, are on the device where there are
// pointers to them. With a flag that is 0 nothing is written.
struct Update {
  void *p, *m, *v;
  const void *g;
  u64 n;
  const f64 *clip_by, *numbers, *flag;
  f64 b1, b2, eps, c1, c2, rate, decay, clip;
  u32 first, wide;
};

// updated is the number of elements that a block of 256 threads takes.
constexpr u32 updated = 4096;

template <class T, class W, int WIDE> DEVICE void update(const Update *table, u32 count) {
  __shared__ Update e;
  __shared__ Adam<W> a;
  __shared__ bool runs;
  if (threadIdx.x == 0) {
    e = *find(table, count);
    f64 c1 = e.c1, c2 = e.c2, rate = e.rate, decay = e.decay, clip = e.clip;
    if (e.numbers) c1 = e.numbers[0], c2 = e.numbers[1], rate = e.numbers[2], decay = e.numbers[3];
    if (e.clip_by) clip = *e.clip_by;
    a.b1 = (W)e.b1;
    a.a1 = (W)(1 - e.b1);
    a.b2 = (W)e.b2;
    a.a2 = (W)(1 - e.b2);
    a.r1 = (W)(1 / c1);
    a.r2 = (W)(1 / c2);
    a.eps = (W)e.eps;
    a.clip = (W)clip;
    a.keep = (W)(1 - rate * decay);
    a.rate = (W)-rate;
    runs = !e.flag || *e.flag != 0;
  }
  __syncthreads();
  if (!runs) return;
  T *p = (T *)e.p, *m = (T *)e.m, *v = (T *)e.v;
  const T *g = (const T *)e.g;
  u64 begin = (u64)(blockIdx.x - e.first) * updated, end = begin + updated < e.n ? begin + updated : e.n;
  u64 i = begin + threadIdx.x * WIDE;
  if (e.wide) {
    for (; i + WIDE <= end; i += 256 * WIDE) {
      Vec<T, WIDE> vp = load<WIDE>(p + i), vm = load<WIDE>(m + i), vv = load<WIDE>(v + i), vg = load<WIDE>(g + i);
#pragma unroll
      for (int k = 0; k < WIDE; k++) step(a, vp.v[k], vm.v[k], vv.v[k], vg.v[k]);
      store(p + i, vp);
      store(m + i, vm);
      store(v + i, vv);
    }
  }
  for (; i < end; i += 256 * WIDE)
    for (u64 j = i; j < i + WIDE && j < end; j++) step(a, p[j], m[j], v[j], g[j]);
}

#define ADAMW_MANY(T, W, WIDE) \
  KERNEL adamw_many_##T(const Update *table, u32 count) { update<T, W, WIDE>(table, count); }
ADAMW_MANY(f32, f32, 4)
ADAMW_MANY(f64, f64, 2)
ADAMW_MANY(bf16, f32, 4)
ADAMW_MANY(f16, f32, 4)

// sum_in_order adds n numbers one after the other, by a block of 256 threads of which the others bring them.
DEVICE f64 sum_in_order(const f64 *x, u64 n) {
  __shared__ f64 tile[256];
  f64 sum = 0;
  for (u64 at = 0; at < n; at += 256) {
    __syncthreads();
    if (at + threadIdx.x < n) tile[threadIdx.x] = x[at + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      u32 count = n - at < 256 ? (u32)(n - at) : 256;
      for (u32 k = 0; k < count; k++) sum += tile[k];
    }
  }
  return sum;
}

DEVICE bool is_finite(f64 x) { return fabs(x) <= 1.7976931348623157e308; }

// clip_factor measures gradients by the sums of their squares: see OpClipFactor.
KERNEL clip_factor(f64 *out, const f64 *squares, u64 n, const f64 *losses, u64 m, f64 limit, f64 scale) {
  f64 sum = sum_in_order(squares, n), loss = sum_in_order(losses, m);
  if (threadIdx.x != 0) return;
  f64 norm = sqrt(sum) / scale, clip = 1, factor = limit / (norm + 1e-6);
  if (limit > 0 && is_finite(norm) && factor < 1) clip = factor;
  clip /= scale;
  out[0] = norm;
  out[1] = clip;
  out[2] = is_finite(norm) && is_finite(loss) ? 1 : 0;
  out[3] = clip != 1 ? 1 : 0;
}
