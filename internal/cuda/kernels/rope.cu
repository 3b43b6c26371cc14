// SPDX-License-Identifier: Apache-2.0

// Rotary position embedding.

#include "lockstep.cuh"

// Rope is x [B,H,T,D] with tables [B,T,R], of strides in elements; those of the last dims are 1.
struct Rope {
  i64 x[3], out[3], cos[2], sin[2];
  i64 n;  // threads: B·H·T·(D−R)
  i32 heads, length, width, pairs;
  i32 back;
};

// rope has a thread turn a pair, (e, R+e), or copy an element from 2R on.
template <typename T, typename C> DEVICE void rope(const T *x, const C *cos, const C *sin, T *out, const Rope &g) {
  typedef Wide<T> A;
  u32 per = g.width - g.pairs;
  for (i64 k = thread_index(); k < g.n; k += thread_count()) {
    u32 e, t, h;
    i64 b;
    if (g.n <= 0xffffffffu) {
      u32 i = (u32)k, q = i / per;
      e = i - q * per;
      i = q / g.length;
      t = q - i * g.length;
      b = i / g.heads;
      h = i - (u32)b * g.heads;
    } else {
      e = (u32)(k % per);
      i64 i = k / per;
      t = (u32)(i % g.length);
      i /= g.length;
      h = (u32)(i % g.heads);
      b = i / g.heads;
    }
    const T *from = x + b * g.x[0] + h * g.x[1] + t * g.x[2];
    T *to = out + b * g.out[0] + h * g.out[1] + t * g.out[2];
    if (e >= g.pairs) {
      to[g.pairs + e] = from[g.pairs + e];
      continue;
    }
    A c = (A)widen(cos[b * g.cos[0] + t * g.cos[1] + e]), s = (A)widen(sin[b * g.sin[0] + t * g.sin[1] + e]);
    if (g.back) s = -s;
    A u = widen(from[e]), v = widen(from[g.pairs + e]);
    to[e] = narrow<T>(u * c - v * s);
    to[g.pairs + e] = narrow<T>(v * c + u * s);
  }
}

#define ROPE(S, T, C)                                                                                                 \
  KERNEL rope_##S(const T *x, const C *cos, const C *sin, T *out, Rope g) { rope(x, cos, sin, out, g); }

ROPE(f32, f32, f32)
ROPE(f64, f64, f64)
ROPE(bf16, bf16, bf16)
ROPE(f16, f16, f16)
ROPE(wide_bf16, bf16, f32)
ROPE(wide_f16, f16, f32)
