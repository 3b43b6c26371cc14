// SPDX-License-Identifier: Apache-2.0

// Elementwise ops, as internal/backend/op.go defines them. An op is an expression of its inputs x, y, z in the type
// that it computes in, and of its attributes a and b. Each dtype has a source of its own, which makes of the lists here
//
//   NAME_DTYPE           contiguous and aligned operands, by loads of 16 or 8 bytes
//   NAME_DTYPE_strided   any strides
//
// Both have one signature for all ops: inputs that an op lacks are null. So is the flag of a kernel that is not
// conditional, and the number that takes a's place if it is in memory.

#pragma once
#include "dims.cuh"

// Functions that are used more than once. Nothing grows but e^(−|x|), or stays within what the type holds.

template <class T> DEVICE T logistic(T x) { return 1 / (1 + exp(-x)); }
template <class T> DEVICE T softplus_of(T x) { return (x < 0 ? 0 : x) + log1p(exp(-fabs(x))); }
template <class T> DEVICE T silu_of(T x) { return x / (1 + exp(-x)); }
template <class T> DEVICE T silu_slope(T x) {
  T s = logistic(x);
  return s * (1 + x * (1 - s));
}
template <class T> DEVICE T normal_cdf(T x) { return erfc(x * (T)-0.70710678118654752440) / 2; }
template <class T> DEVICE T gelu_slope(T x) {
  return normal_cdf(x) + x * exp(x * x * (T)-0.5) * (T)0.39894228040143267794;
}

// GELU's tanh form (Hendrycks & Gimpel 2016): ½x(1+tanh(u)) = x·σ(2u), 2u = 2√(2/π)(x + 0.044715x³).
template <class T> DEVICE T gelu_gate(T x) {
  return logistic(x * ((T)1.59576912160573071176 + (T)0.07135481627260025280 * x * x));
}
template <class T> DEVICE T gelu_tanh_slope(T x) {
  const T border = sizeof(T) == 4 ? 16 : 64;  // beyond it the slope is 0 or 1, but x·x may overflow
  x = x > border ? border : x < -border ? -border : x;
  T s = gelu_gate(x);
  return s + x * s * (1 - s) * ((T)1.59576912160573071176 + (T)0.21406444881780075841 * x * x);
}

template <class T> DEVICE T power(T x, f64 e) {
  if (e == 2) return x * x;
  if (e == 3) return x * x * x;
  return pow(x, (T)e);
}

// A NaN wins, and 0 is larger than −0.
DEVICE f32 larger(f32 x, f32 y) {
  f32 z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
DEVICE f32 smaller(f32 x, f32 y) {
  f32 z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
DEVICE f64 larger(f64 x, f64 y) { return x != x || y != y ? x + y : fmax(x, y); }
DEVICE f64 smaller(f64 x, f64 y) { return x != x || y != y ? x + y : fmin(x, y); }
template <class T> DEVICE T larger(T x, T y) { return x > y ? x : y; }
template <class T> DEVICE T smaller(T x, T y) { return x < y ? x : y; }

template <class T> DEVICE T magnitude(T x) { return x < 0 ? -x : x; }
DEVICE f32 magnitude(f32 x) { return fabsf(x); }
DEVICE f64 magnitude(f64 x) { return fabs(x); }

// The part of ln(1+eˣ) and ln(1+e⁻ˣ) that does not cancel, weighted: p·y·ln(1+e⁻ˣ) + (1−y)·ln(1+eˣ).
template <class T> DEVICE T bce(T x, T y, T p) {
  T common = log1p(exp(-fabs(x)));
  return p * y * (common + (x < 0 ? -x : 0)) + (1 - y) * (common + (x > 0 ? x : 0));
}
template <class T> DEVICE T bce_slope(T x, T y, T p) {
  T e = exp(-fabs(x)), near = 1 / (1 + e), far = e / (1 + e);
  T up = x < 0 ? far : near, down = x < 0 ? near : far;
  return (1 - y) * up - p * y * down;
}

#define OP_OF(NAME, FLAG, NUMBER, EXPRESSION)                                               \
  struct op_##NAME {                                                                        \
    static const bool has_flag = FLAG, has_number = NUMBER;                                 \
    template <class T, class A> DEVICE T of(T x, T y, T z, A a, A b) { return EXPRESSION; } \
  };
#define OP(NAME, EXPRESSION) OP_OF(NAME, false, false, EXPRESSION)
#define TEST(NAME, EXPRESSION)                                                       \
  struct op_##NAME {                                                                 \
    template <class T> DEVICE b8 of(T x, T y) { return b8{(u8)(EXPRESSION)}; }       \
  };

OP(neg, -x)
OP(abs, magnitude(x))
OP(exp, exp(x))
OP(log, log(x))
OP(sqrt, sqrt(x))
OP(rsqrt, 1 / sqrt(x))
OP(sin, sin(x))
OP(cos, cos(x))
OP(tanh, tanh(x))
OP(sigmoid, logistic(x))
OP(erf, erf(x))
OP(relu, x < 0 ? 0 : x)
OP(gelu, x *normal_cdf(x))
OP(gelu_tanh, x *gelu_gate(x))
OP(silu, silu_of(x))
OP(leaky_relu, x > 0 ? x : x * (T)a)
OP(elu, x > 0 ? x : (T)a * expm1(x))
OP(softplus, (f64)x *a > b ? x : softplus_of(x * (T)a) / (T)a)
OP_OF(affine, true, true, x *(T)a + (T)b)
OP(pow_scalar, power(x, a))

OP(tanh_grad, y *(1 - x * x))
OP(sigmoid_grad, y *(x * (1 - x)))
OP(relu_grad, x > 0 ? y : 0)
OP(gelu_grad, y *gelu_slope(x))
OP(gelu_tanh_grad, y *gelu_tanh_slope(x))
OP(silu_grad, y *silu_slope(x))
OP(leaky_relu_grad, x > 0 ? y : y * (T)a)
OP(elu_grad, x > 0 ? y : y * (T)a * exp(x))
OP(softplus_grad, (f64)x *a > b ? y : y * logistic(x * (T)a))

OP_OF(add, true, false, x + y)
OP(sub, x - y)
OP(mul, x *y)
OP(div, x / y)
OP(pow, pow(x, y))
OP(maximum, larger(x, y))
OP(minimum, smaller(x, y))
OP_OF(axpby, true, false, x *(T)a + y * (T)b)
OP(swiglu, silu_of(x) * y)
OP(bce_with_logits, bce(x, y, (T)1))
OP(bce_with_logits_weighted, bce(x, y, z))
OP(bce_with_logits_slope, bce_slope(x, y, (T)1))
OP(bce_with_logits_slope_weighted, bce_slope(x, y, z))

TEST(eq, x == y)
TEST(ne, x != y)
TEST(lt, x < y)
TEST(le, x <= y)
TEST(gt, x > y)
TEST(ge, x >= y)
TEST(and, x != 0 && y != 0)
TEST(or, x != 0 || y != 0)

// Lists: X(NAME, inputs, bytes of a load). Ops of many instructions take half as many elements at a time.
#define FLOAT_OPS(X)                                                                                              \
  X(neg, 1, 16) X(abs, 1, 16) X(exp, 1, 16) X(log, 1, 8) X(sqrt, 1, 16) X(rsqrt, 1, 16) X(sin, 1, 4) X(cos, 1, 4)   \
  X(tanh, 1, 8) X(sigmoid, 1, 16) X(erf, 1, 8) X(relu, 1, 16) X(gelu, 1, 8) X(gelu_tanh, 1, 16) X(silu, 1, 16)      \
  X(leaky_relu, 1, 16) X(elu, 1, 8) X(softplus, 1, 8) X(affine, 1, 16) X(pow_scalar, 1, 4) X(tanh_grad, 2, 16)      \
  X(sigmoid_grad, 2, 16) X(relu_grad, 2, 16) X(gelu_grad, 2, 8) X(gelu_tanh_grad, 2, 16) X(silu_grad, 2, 16)        \
  X(leaky_relu_grad, 2, 16) X(elu_grad, 2, 8) X(softplus_grad, 2, 8) X(add, 2, 16) X(sub, 2, 16) X(mul, 2, 16)      \
  X(div, 2, 16) X(pow, 2, 4) X(maximum, 2, 16) X(minimum, 2, 16) X(axpby, 2, 16) X(swiglu, 2, 16)                   \
  X(bce_with_logits, 2, 8) X(bce_with_logits_weighted, 3, 8) X(bce_with_logits_slope, 2, 8)                         \
  X(bce_with_logits_slope_weighted, 3, 8)
#define INT_OPS(X) X(add, 2, 0) X(sub, 2, 0) X(mul, 2, 0) X(maximum, 2, 0) X(minimum, 2, 0)
#define SIGNED_OPS(X) X(neg, 1, 0) X(abs, 1, 0) X(affine, 1, 0)
#define TESTS(X) X(eq) X(ne) X(lt) X(le) X(gt) X(ge)

// evaluate widens the inputs that there are.
template <class F, int INS, class T, class A> DEVICE T evaluate(T x, T y, T z, A a, A b) {
  typedef Wide<T> W;
  return narrow<T>(F::of(widen(x), INS > 1 ? widen(y) : W(), INS > 2 ? widen(z) : W(), a, b));
}

template <class F, int INS, int N, class T, class A>
DEVICE void contiguous(T *out, const T *x, const T *y, const T *z, u64 n, A a, A b, const f64 *flag,
                       const f64 *number) {
  if (F::has_flag && skipped(flag)) return;
  if (F::has_number && number != nullptr) a = *number;
  u64 first = thread_index(), whole = n / N;
  for (u64 i = first; i < whole; i += thread_count()) {
    Vec<T, N> u = load<N>(x + i * N), v = {}, w = {};
    if (INS > 1) v = load<N>(y + i * N);
    if (INS > 2) w = load<N>(z + i * N);
#pragma unroll
    for (int k = 0; k < N; k++) u.v[k] = evaluate<F, INS>(u.v[k], v.v[k], w.v[k], a, b);
    store(out + i * N, u);
  }
  u64 i = whole * N + first;
  if (i < n) out[i] = evaluate<F, INS>(x[i], INS > 1 ? y[i] : T(), INS > 2 ? z[i] : T(), a, b);
}

template <class F, int INS, class T, class A>
DEVICE void strided(const Dims &d, T *out, const T *x, const T *y, const T *z, A a, A b, const f64 *flag,
                    const f64 *number) {
  if (F::has_flag && skipped(flag)) return;
  if (F::has_number && number != nullptr) a = (A)*number;
  for (u64 i = thread_index(); i < d.n; i += thread_count()) {
    i64 at[INS + 1];
    offsets(d, (u32)i, at);
    T u = x[at[1]], v = T(), w = T();
    if (INS > 1) v = y[at[INS > 1 ? 2 : 0]];
    if (INS > 2) w = z[at[INS > 2 ? 3 : 0]];
    out[at[0]] = evaluate<F, INS>(u, v, w, a, b);
  }
}

template <class F, class T> DEVICE void compare(const Dims &d, b8 *out, const T *x, const T *y) {
  for (u64 i = thread_index(); i < d.n; i += thread_count()) {
    i64 at[3];
    offsets(d, (u32)i, at);
    out[at[0]] = F::of(widen(x[at[1]]), widen(y[at[2]]));
  }
}

#define CONTIGUOUS(NAME, INS, BYTES, T)                                                                            \
  KERNEL NAME##_##T(T *out, const T *x, const T *y, const T *z, u64 n, f64 a, f64 b, const f64 *flag,              \
                    const f64 *number) {                                                                           \
    contiguous<op_##NAME, INS, BYTES / sizeof(T)>(out, x, y, z, n, a, b, flag, number);                            \
  }
#define STRIDED(NAME, INS, T, A)                                                                                   \
  KERNEL NAME##_##T##_strided(const __grid_constant__ Dims d, T *out, const T *x, const T *y, const T *z, A a,     \
                              A b, const f64 *flag, const f64 *number) {                                           \
    strided<op_##NAME, INS>(d, out, x, y, z, a, b, flag, number);                                                  \
  }
#define COMPARE(NAME, T)                                                                                 \
  KERNEL NAME##_##T##_strided(const __grid_constant__ Dims d, b8 *out, const T *x, const T *y) {         \
    compare<op_##NAME>(d, out, x, y);                                                                    \
  }

// Sums in float32 of numbers of a half type: add_mixed, whose x is float32, and add_halves, whose x is of y's type, too.
// Conditional as add.

template <int N, class X, class Y>
DEVICE void add_wide(f32 *out, const X *x, const Y *y, u64 n, const f64 *flag) {
  if (skipped(flag)) return;
  u64 first = thread_index(), whole = n / N;
  for (u64 i = first; i < whole; i += thread_count()) {
    Vec<X, N> u = load<N>(x + i * N);
    Vec<Y, N> v = load<N>(y + i * N);
    Vec<f32, N> z;
#pragma unroll
    for (int k = 0; k < N; k++) z.v[k] = widen(u.v[k]) + widen(v.v[k]);
    store(out + i * N, z);
  }
  u64 i = whole * N + first;
  if (i < n) out[i] = widen(x[i]) + widen(y[i]);
}

template <class X, class Y>
DEVICE void add_wide_strided(const Dims &d, f32 *out, const X *x, const Y *y, const f64 *flag) {
  if (skipped(flag)) return;
  for (u64 i = thread_index(); i < d.n; i += thread_count()) {
    i64 at[3];
    offsets(d, (u32)i, at);
    out[at[0]] = widen(x[at[1]]) + widen(y[at[2]]);
  }
}

#define ADD_WIDE(NAME, X, Y)                                                                                       \
  KERNEL NAME##_##Y(f32 *out, const X *x, const Y *y, u64 n, const f64 *flag) {                                    \
    add_wide<4>(out, x, y, n, flag);                                                                               \
  }                                                                                                                \
  KERNEL NAME##_##Y##_strided(const __grid_constant__ Dims d, f32 *out, const X *x, const Y *y, const f64 *flag) { \
    add_wide_strided(d, out, x, y, flag);                                                                          \
  }
#define ADDS(T) ADD_WIDE(add_mixed, f32, T) ADD_WIDE(add_halves, T, T)

// Two outputs, contiguous operands: N elements at a time if all are aligned.

template <class T> struct Pair { T first, second; };

// gelu_tanh_both: the gradient dx, and gelu_tanh of x with its bits.
template <class T> DEVICE Pair<T> gelu_tanh_pair(T x, T dy) {
  Wide<T> v = widen(x);
  return {narrow<T>(widen(dy) * gelu_tanh_slope(v)), narrow<T>(v * gelu_gate(v))};
}

template <int N, class T> DEVICE void gelu_tanh_both(T *dx, T *y, const T *x, const T *dy, u64 n, bool wide) {
  u64 first = thread_index(), whole = wide ? n / N : 0;
  for (u64 i = first; i < whole; i += thread_count()) {
    Vec<T, N> u = load<N>(x + i * N), g = load<N>(dy + i * N);
#pragma unroll
    for (int k = 0; k < N; k++) {
      Pair<T> p = gelu_tanh_pair(u.v[k], g.v[k]);
      g.v[k] = p.first;
      u.v[k] = p.second;
    }
    store(dx + i * N, g);
    store(y + i * N, u);
  }
  for (u64 i = whole * N + first; i < n; i += thread_count()) {
    Pair<T> p = gelu_tanh_pair(x[i], dy[i]);
    dx[i] = p.first;
    y[i] = p.second;
  }
}

// swiglu_grad: dgate = dy·up·silu′(gate), dup = dy·silu(gate).
template <class T> DEVICE Pair<T> swiglu_pair(T gate, T up, T dy) {
  Wide<T> x = widen(gate), d = widen(dy);
  return {narrow<T>(d * widen(up) * silu_slope(x)), narrow<T>(d * silu_of(x))};
}

template <int N, class T>
DEVICE void swiglu_grad(T *dgate, T *dup, const T *gate, const T *up, const T *dy, u64 n, bool wide) {
  u64 first = thread_index(), whole = wide ? n / N : 0;
  for (u64 i = first; i < whole; i += thread_count()) {
    Vec<T, N> a = load<N>(gate + i * N), b = load<N>(up + i * N), g = load<N>(dy + i * N);
#pragma unroll
    for (int k = 0; k < N; k++) {
      Pair<T> p = swiglu_pair(a.v[k], b.v[k], g.v[k]);
      a.v[k] = p.first;
      b.v[k] = p.second;
    }
    store(dgate + i * N, a);
    store(dup + i * N, b);
  }
  for (u64 i = whole * N + first; i < n; i += thread_count()) {
    Pair<T> p = swiglu_pair(gate[i], up[i], dy[i]);
    dgate[i] = p.first;
    dup[i] = p.second;
  }
}

#define PAIRS(T, N)                                                                                              \
  KERNEL gelu_tanh_both_##T(T *dx, T *y, const T *x, const T *dy, u64 n, u32 wide) {                             \
    gelu_tanh_both<N>(dx, y, x, dy, n, wide);                                                                    \
  }                                                                                                              \
  KERNEL swiglu_grad_##T(T *dgate, T *dup, const T *gate, const T *up, const T *dy, u64 n, u32 wide) {           \
    swiglu_grad<N>(dgate, dup, gate, up, dy, n, wide);                                                           \
  }
