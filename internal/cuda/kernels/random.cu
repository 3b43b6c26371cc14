// SPDX-License-Identifier: Apache-2.0

// Random numbers by address, as internal/rng: a thread draws one block of Philox, which is four numbers of 32 bits or
// two of 64. All of it is IEEE arithmetic in the CPU's order, so that the bits are the CPU's.

#include "lockstep.cuh"

// Four elements of a sample, or fewer at its end. `wide` says that all groups of four are whole and aligned.
template <class T> DEVICE Vec<T, 4> load4(const T *p, u64 left, bool wide) {
  if (wide) return load<4>(p);
  Vec<T, 4> x = {};
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < left) x.v[k] = p[k];
  return x;
}

template <class T> DEVICE void store4(T *p, const Vec<T, 4> &x, u64 left, bool wide) {
  if (wide) {
    store(p, x);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < left) p[k] = x.v[k];
}

// quotient divides by 32-bit arithmetic where that is enough.
DEVICE u64 quotient(u64 a, u64 b) { return (a | b) >> 32 ? a / b : (u64)((u32)a / (u32)b); }

// dropout keeps what has random bits of at least the threshold, and multiplies it by scale. Sample s is drawn at
// position + s; per is the number of elements of a sample.
template <class T>
DEVICE void dropout(T *out, const T *x, u64 samples, u64 per, u64 key, u64 position, f64 scale, u32 threshold,
                    u32 wide) {
  Wide<T> factor = (Wide<T>)scale;
  u64 groups = (per + 3) / 4;
  for (u64 i = thread_index(); i < samples * groups; i += thread_count()) {
    u64 sample = quotient(i, groups), group = i - sample * groups;
    u64 first = sample * per + group * 4, left = per - group * 4;
    uint4 bits = philox(key, position + sample, group);
    Vec<T, 4> v = load4(x + first, left, wide);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      Wide<T> kept = widen(v.v[k]) * factor;
      v.v[k] = narrow<T>(word(bits, k) >> 8 < threshold ? (Wide<T>)0 : kept);
    }
    store4(out + first, v, left, wide);
  }
}

#define DROPOUT(T)                                                                                             \
  KERNEL dropout_##T(T *out, const T *x, u64 samples, u64 per, u64 key, u64 position, f64 scale, u32 threshold, \
                     u32 wide) {                                                                               \
    dropout<T>(out, x, samples, per, key, position, scale, threshold, wide);                                   \
  }
DROPOUT(f32)
DROPOUT(f64)
DROPOUT(bf16)
DROPOUT(f16)

// horner evaluates a polynomial, the highest coefficient first.
template <int N> DEVICE f64 horner(f64 z, const f64 (&c)[N]) {
  f64 p = c[0];
#pragma unroll
  for (int i = 1; i < N; i++) p = p * z + c[i];
  return p;
}

// log_unit is the natural logarithm of u in (0, 1].
DEVICE f64 log_unit(f64 u) {
  const f64 series[] = {1. / 21, 1. / 19, 1. / 17, 1. / 15, 1. / 13, 1. / 11, 1. / 9, 1. / 7, 1. / 5, 1. / 3};
  u64 bits = (u64)__double_as_longlong(u);
  i32 e = (i32)(bits >> 52) - 1022;
  f64 m = __longlong_as_double((i64)((bits & 0xFFFFFFFFFFFFFull) | 0x3FE0000000000000ull));  // [½, 1)
  if (m < 0x1.6a09e667f3bcdp-1) {
    m *= 2;
    e -= 1;
  }
  f64 s = (m - 1) / (m + 1), z = s * s;
  return (f64)e * 0x1.62e42fefa39efp-1 + 2 * s * (1 + z * horner(z, series));
}

// sincos_turn gives the sine and cosine of 2πt for t in [0, 1).
DEVICE void sincos_turn(f64 t, f64 &sine, f64 &cosine) {
  const f64 sines[] = {1. / 355687428096000, -1. / 1307674368000, 1. / 6227020800, -1. / 39916800,
                       1. / 362880, -1. / 5040, 1. / 120, -1. / 6};
  const f64 cosines[] = {-1. / 6402373705728000, 1. / 20922789888000, -1. / 87178291200, 1. / 479001600,
                         -1. / 3628800, 1. / 40320, -1. / 720, 1. / 24, -1. / 2};
  f64 quadrant = floor(t * 4 + 0.5);
  f64 x = (t - quadrant / 4) * 0x1.921fb54442d18p+2, z = x * x;
  f64 s = x * (1 + z * horner(z, sines)), c = 1 + z * horner(z, cosines);
  i32 q = (i32)quadrant & 3;
  sine = q & 1 ? c : s;
  cosine = q & 1 ? s : c;
  if (q & 2) sine = -sine;
  if (q == 1 || q == 2) cosine = -cosine;
}

// normals is the transform of Box and Muller (1958) of u in (0, 1] and t in [0, 1).
DEVICE void normals(f64 u, f64 t, f64 &even, f64 &odd) {
  f64 r = sqrt(-2 * log_unit(u)), s, c;
  sincos_turn(t, s, c);
  even = r * c;
  odd = r * s;
}

struct Uniform {
  DEVICE void draw(uint4 b, f32 (&z)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) z[k] = unit32(word(b, k));
  }
  DEVICE void draw(uint4 b, f64 (&z)[2]) {
    z[0] = unit64(b.x, b.y);
    z[1] = unit64(b.z, b.w);
  }
};

struct Normal {
  DEVICE void draw(uint4 b, f32 (&z)[4]) {
    f64 even, odd;
    normals(((f64)b.x + 0.5) * 0x1p-32, (f64)b.y * 0x1p-32, even, odd);
    z[0] = (f32)even;
    z[1] = (f32)odd;
    normals(((f64)b.z + 0.5) * 0x1p-32, (f64)b.w * 0x1p-32, even, odd);
    z[2] = (f32)even;
    z[3] = (f32)odd;
  }
  DEVICE void draw(uint4 b, f64 (&z)[2]) {
    u64 radius = ((u64)b.y << 32 | b.x) >> 11;
    normals(((f64)(i64)radius + 0.5) * 0x1p-53, unit64(b.z, b.w), z[0], z[1]);
  }
};

// drawn sets out to first + factor·z, where the numbers z of a whole tensor are drawn at one position.
template <class D, class T>
DEVICE void drawn(T *out, u64 n, u64 key, u64 position, f64 first, f64 factor) {
  constexpr int N = sizeof(Wide<T>) == 8 ? 2 : 4;
  Wide<T> a = (Wide<T>)first, b = (Wide<T>)factor;
  for (u64 i = thread_index(); i * N < n; i += thread_count()) {
    Wide<T> z[N];
    D::draw(philox(key, position, i), z);
#pragma unroll
    for (int k = 0; k < N; k++)
      if (i * N + k < n) out[i * N + k] = narrow<T>(a + z[k] * b);
  }
}

#define DRAWN(NAME, D, T)                                                                            \
  KERNEL NAME##_##T(T *out, u64 n, u64 key, u64 position, f64 first, f64 factor) {                   \
    drawn<D, T>(out, n, key, position, first, factor);                                               \
  }
DRAWN(uniform, Uniform, f32)
DRAWN(uniform, Uniform, f64)
DRAWN(uniform, Uniform, bf16)
DRAWN(uniform, Uniform, f16)
DRAWN(normal, Normal, f32)
DRAWN(normal, Normal, f64)
DRAWN(normal, Normal, bf16)
DRAWN(normal, Normal, f16)

DEVICE bf16 round_by(f32 x, u32 r, bf16) {
  const u32 exponent = 0x7F800000u;
  u32 b = __float_as_uint(x), up = b + (r >> 16);
  if ((b & exponent) == exponent) return narrow<bf16>(x);
  if ((up & exponent) != exponent) b = up;
  return bf16{(u16)(b >> 16)};
}

DEVICE f16 round_by(f32 x, u32 r, f16) {
  const u32 dropped = 13, low = (1u << dropped) - 1;
  u32 b = __float_as_uint(x);
  f32 size = fabsf(x);
  if (!(size < 0x1p16f)) return narrow<f16>(x);
  if (size < 0x1p-14f) {  // multiples of 2⁻²⁴, which are those of their bits
    f64 steps = (f64)size * 0x1p24, below = floor(steps);
    if ((steps - below) * 0x1p32 > (f64)r) below += 1;
    return f16{(u16)(((b >> 16) & 0x8000u) | (u32)below)};
  }
  f32 up = __uint_as_float((b + (r >> (32 - dropped))) & ~low);
  if (fabsf(up) >= 0x1p16f) up = __uint_as_float(b & ~low);
  return narrow<f16>(up);
}

// stochastic_round rounds element i by the bits of element first + i. A thread takes the elements of one block.
template <class T>
DEVICE void stochastic_round(T *out, const f32 *x, u64 n, u64 key, u64 position, u64 first) {
  u64 shift = first & 3;
  for (u64 i = thread_index(); i * 4 < n + shift; i += thread_count()) {
    uint4 bits = philox(key, position, (first >> 2) + i);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u64 at = i * 4 + k - shift;  // wraps below 0
      if (at < n) out[at] = round_by(x[at], word(bits, k), T());
    }
  }
}

#define STOCHASTIC(T)                                                                           \
  KERNEL stochastic_round_##T(T *out, const f32 *x, u64 n, u64 key, u64 position, u64 first,    \
                              const f64 *flag) {                                                \
    if (!skipped(flag)) stochastic_round<T>(out, x, n, key, position, first);                   \
  }
STOCHASTIC(bf16)
STOCHASTIC(f16)
