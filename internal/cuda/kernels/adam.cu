// SPDX-License-Identifier: Apache-2.0

// Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), one pass over contiguous tensors. The arithmetic is the
// CPU's, operation by operation: in float32 and float64 the bits are equal, and so they are in half types, whose moments
// and parameters are rounded once.

#include "adam.cuh"

template <class T, class W> DEVICE void moments(const Adam<W> &a, T &u, T &m, T &v, T g) {
  W wm = widen(m), wv = widen(v);
  u = narrow<T>(direction(a, wm, wv, (W)widen(g)));
  m = narrow<T>(wm);
  v = narrow<T>(wv);
}

// WIDE elements at a time if all operands are aligned, else one.
#define ADAM(NAME, STEP, T, W, WIDE)                                                                    \
  KERNEL NAME##_##T(const __grid_constant__ Adam<W> a, T *p, T *m, T *v, const T *g, u64 n, u32 wide) { \
    u64 first = thread_index(), whole = wide ? n / WIDE : 0;                                            \
    for (u64 i = first; i < whole; i += thread_count()) {                                               \
      Vec<T, WIDE> vp = {}, vm = load<WIDE>(m + i * WIDE), vv = load<WIDE>(v + i * WIDE),               \
                   vg = load<WIDE>(g + i * WIDE);                                                       \
      if (READS_##STEP) vp = load<WIDE>(p + i * WIDE);                                                  \
      _Pragma("unroll") for (int k = 0; k < WIDE; k++) STEP(a, vp.v[k], vm.v[k], vv.v[k], vg.v[k]);     \
      store(p + i * WIDE, vp);                                                                          \
      store(m + i * WIDE, vm);                                                                          \
      store(v + i * WIDE, vv);                                                                          \
    }                                                                                                   \
    for (u64 i = whole * WIDE + first; i < n; i += thread_count()) {                                    \
      T sp = {}, sm = m[i], sv = v[i];                                                                  \
      if (READS_##STEP) sp = p[i];                                                                      \
      STEP(a, sp, sm, sv, g[i]);                                                                        \
      p[i] = sp;                                                                                        \
      m[i] = sm;                                                                                        \
      v[i] = sv;                                                                                        \
    }                                                                                                   \
  }
#define READS_step true
#define READS_moments false
#define BOTH(T, W, WIDE) ADAM(adam_moments, moments, T, W, WIDE) ADAM(adamw, step, T, W, WIDE)
BOTH(f32, f32, 4)
BOTH(f64, f64, 2)
BOTH(bf16, f32, 4)
BOTH(f16, f32, 4)
