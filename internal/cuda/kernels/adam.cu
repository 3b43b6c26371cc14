// SPDX-License-Identifier: Apache-2.0

// Adam (Kingma & Ba 2015), AdamW (Loshchilov & Hutter 2019), and what a step needs beside them. The arithmetic is the
// CPU's, operation by operation: in float32 and float64 the bits are equal, and so they are in half types, whose
// parameters and moments are rounded once.

#include "many.cuh"

// Numbers are a step's, as backend.Call has them. With addresses, the factor of the gradient, and c₁, c₂, lr and decay,
// are read from memory. A flag that is 0 leaves everything as it is.
struct Numbers {
  f64 b1, b2, eps, c1, c2, lr, decay, factor;
  const f64 *factor_at, *others_at, *flag;
};

// Adam is what one element needs, in the type that it computes in.
template <class W> struct Adam { W b1, a1, b2, a2, r1, r2, eps, factor, keep, rate; };

template <class W> DEVICE Adam<W> prepare(const Numbers &n) {
  f64 factor = n.factor, c1 = n.c1, c2 = n.c2, lr = n.lr, decay = n.decay;
  if (n.factor_at != nullptr) factor = *n.factor_at;
  if (n.others_at != nullptr) {
    c1 = n.others_at[0];
    c2 = n.others_at[1];
    lr = n.others_at[2];
    decay = n.others_at[3];
  }
  return {(W)n.b1, (W)(1 - n.b1), (W)n.b2, (W)(1 - n.b2), (W)(1 / c1), (W)(1 / c2), (W)n.eps, (W)factor,
          (W)(1 - lr * decay), (W)-lr};
}

template <class W> DEVICE W direction(const Adam<W> &a, W &m, W &v, W g) {
  m = a.b1 * m + a.a1 * g;
  v = a.b2 * v + a.a2 * (g * g);
  return m * a.r1 / (sqrt(v * a.r2) + a.eps);
}

// In float32 the passes one after the other begin and end with OpAffine, which adds 0: −0 becomes 0.
DEVICE f32 affine(f32 a, f32 x) { return a * x + 0.0f; }
DEVICE f64 affine(f64 a, f64 x) { return a * x; }

struct Step {
  static const bool reads_first = true;
  template <class T, class W> DEVICE void of(const Adam<W> &a, T &p, T &m, T &v, T g) {
    W wm = widen(m), wv = widen(v);
    W u = direction(a, wm, wv, affine(a.factor, (W)widen(g)));
    p = narrow<T>(affine(a.keep, (W)widen(p)) + a.rate * u);
    m = narrow<T>(wm);
    v = narrow<T>(wv);
  }
};

struct Moments {
  static const bool reads_first = false;
  template <class T, class W> DEVICE void of(const Adam<W> &a, T &u, T &m, T &v, T g) {
    W wm = widen(m), wv = widen(v);
    u = narrow<T>(direction(a, wm, wv, (W)widen(g)));
    m = narrow<T>(wm);
    v = narrow<T>(wv);
  }
};

// update walks from element `first` in steps: N elements at a time if all operands are aligned, and one by one.
template <class F, int N, class T, class W>
DEVICE void update(const Adam<W> &a, T *p, T *m, T *v, const T *g, u64 n, bool wide, u64 first, u64 step) {
  u64 whole = wide ? n / N : 0;
  for (u64 i = first; i < whole; i += step) {
    Vec<T, N> vp = {}, vm = load<N>(m + i * N), vv = load<N>(v + i * N), vg = load<N>(g + i * N);
    if (F::reads_first) vp = load<N>(p + i * N);
#pragma unroll
    for (int k = 0; k < N; k++) F::of(a, vp.v[k], vm.v[k], vv.v[k], vg.v[k]);
    store(p + i * N, vp);
    store(m + i * N, vm);
    store(v + i * N, vv);
  }
  for (u64 i = whole * N + first; i < n; i += step) {
    T sp = {}, sm = m[i], sv = v[i];
    if (F::reads_first) sp = p[i];
    F::of(a, sp, sm, sv, g[i]);
    p[i] = sp;
    m[i] = sm;
    v[i] = sv;
  }
}

template <int N, class T, class W> DEVICE void update_many(const Numbers &numbers, const List<4> &list) {
  Adam<W> a = prepare<W>(numbers);
  for (u32 chunk = blockIdx.x; chunk < list.first[list.count]; chunk += gridDim.x) {
    Part p = part_of(list, chunk);
    update<Step, N>(a, (T *)list.at[0][p.i] + p.begin, (T *)list.at[1][p.i] + p.begin,
                    (T *)list.at[2][p.i] + p.begin, (const T *)list.at[3][p.i] + p.begin, p.n, list.wide, threadIdx.x,
                    blockDim.x);
  }
}

#define ADAM(T, W, N)                                                                                              \
  KERNEL adam_moments_##T(const __grid_constant__ Numbers s, T *u, T *m, T *v, const T *g, u64 n, u32 wide) {      \
    if (!skipped(s.flag)) update<Moments, N>(prepare<W>(s), u, m, v, g, n, wide, thread_index(), thread_count());  \
  }                                                                                                                \
  KERNEL adamw_many_##T(const __grid_constant__ List<4> list, const __grid_constant__ Numbers s) {                 \
    if (!skipped(s.flag)) update_many<N, T, W>(s, list);                                                           \
  }
ADAM(f32, f32, 4)
ADAM(f64, f64, 2)
ADAM(bf16, f32, 4)
ADAM(f16, f32, 4)

// clip_factor measures gradients by sums of squares (Pascanu et al. 2013): norm, factor, whether all is finite, and
// whether the factor is not 1. The sums are in order, so one thread adds; the block brings the numbers near.
DEVICE f64 sum_in_order(const f64 *x, u64 n, f64 *tile) {
  f64 sum = 0;
  for (u64 base = 0; base < n; base += blockDim.x) {
    u64 here = min(n - base, (u64)blockDim.x);
    if (threadIdx.x < here) tile[threadIdx.x] = x[base + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
      for (u64 i = 0; i < here; i++) sum += tile[i];
    __syncthreads();
  }
  return sum;
}

KERNEL clip_factor(f64 *out, const f64 *squares, u64 n, const f64 *losses, u64 m, f64 limit, f64 scale) {
  __shared__ f64 tile[256];
  f64 norm = sqrt(sum_in_order(squares, n, tile)) / scale, loss = sum_in_order(losses, m, tile);
  if (threadIdx.x != 0) return;
  f64 clip = 1, f = limit / (norm + 1e-6);
  if (limit > 0 && isfinite(norm) && f < 1) clip = f;
  clip /= scale;
  out[0] = norm;
  out[1] = clip;
  out[2] = isfinite(norm) && isfinite(loss) ? 1 : 0;
  out[3] = clip != 1 ? 1 : 0;
}
