// SPDX-License-Identifier: Apache-2.0

// Batch norm over the channels of x [N,C,L]. The elements of a channel are numbered from 0 to N·L; a block sums a
// segment of them, and the segments are added in order. How many there are follows from the shape.

#include "rows.cuh"

// Shape is that of x, with the elements of a segment.
struct Shape {
  int n, c, l, segment;
  __device__ i64 count() const { return (i64)n * l; }
  // at is where element i of a channel lies.
  __device__ i64 at(int channel, i64 i) const {
    if (count() <= 0x7fffffff) {
      i32 k = (i32)i, plane = k / l;
      return ((i64)plane * c + channel) * l + (k - plane * l);
    }
    return (i / l * c + channel) * l + i % l;
  }
};

// wide_load reads K elements that lie side by side.
template <int K, typename T> DEVICE void wide_load(Wide<T> (&v)[K], const T *p, bool aligned) {
  if (aligned) {
    Vec<T, K> all = load<K>(p);
#pragma unroll
    for (int i = 0; i < K; i++) v[i] = widen(all.v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < K; i++) v[i] = widen(p[i]);
}

// segment calls add for x, and for y if it is not null, of segment blockIdx.x of a channel. Where a plane is a number of
// chunks, a thread takes a chunk at a time, which is so by the shape alone.
template <typename T, typename F> DEVICE void segment(Shape shape, int channel, const T *x, const T *y, F add) {
  typedef Wide<T> A;
  constexpr int K = CHUNK<T>;
  i64 first = (i64)blockIdx.x * shape.segment, end = min(first + shape.segment, shape.count());
  if (shape.l % K == 0) {
    bool in = aligned16(x), other = aligned16(y);
    for (i64 i = first + threadIdx.x * K; i < end; i += blockDim.x * K) {
      A v[K], d[K];
      i64 at = shape.at(channel, i);
      wide_load(v, x + at, in);
      if (y) wide_load(d, y + at, other);
#pragma unroll
      for (int j = 0; j < K; j++) add(v[j], y ? d[j] : (A)0);
    }
    return;
  }
  for (i64 i = first + threadIdx.x; i < end; i += blockDim.x) {
    i64 at = shape.at(channel, i);
    add(widen(x[at]), y ? widen(y[at]) : (A)0);
  }
}

// batch_moments sets the sums, over a segment, of the distances of x to its channel's first element and of their
// squares.
template <typename T> DEVICE void batch_moments(const T *x, f64 *parts, Shape shape) {
  typedef Wide<T> A;
  for (int channel = blockIdx.y; channel < shape.c; channel += gridDim.y) {
    f64 from = (f64)widen(x[shape.at(channel, 0)]), sum = 0, squares = 0;
    segment(shape, channel, x, (const T *)nullptr, [&](A v, A) {
      f64 d = (f64)v - from;
      sum += d;
      squares += d * d;
    });
    sum = row_sum(sum);
    squares = row_sum(squares);
    if (threadIdx.x == 0) {
      f64 *to = parts + 2 * ((i64)channel * gridDim.x + blockIdx.x);
      to[0] = sum;
      to[1] = squares;
    }
  }
}

// add_segments adds up the pairs of sums of a channel's segments, in order. What is added at once is read at once.
DEVICE void add_segments(const f64 *p, int segments, f64 &first, f64 &second) {
  constexpr int AT_ONCE = 16;
  first = second = 0;
  int i = 0;
  for (; i + AT_ONCE <= segments; i += AT_ONCE) {
    Vec<f64, 2> v[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) v[k] = load<2>(p + 2 * (i + k));
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      first += v[k].v[0];
      second += v[k].v[1];
    }
  }
  for (; i < segments; i++) {
    first += p[2 * i];
    second += p[2 * i + 1];
  }
}

// batch_stats makes mean and variance of the sums, a thread a channel.
template <typename T>
DEVICE void batch_stats(const T *x, const f64 *parts, int segments, Wide<T> *mean, Wide<T> *variance,
                           Shape shape) {
  typedef Wide<T> A;
  int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= shape.c) return;
  if (shape.count() == 0) {
    mean[channel] = variance[channel] = 0;
    return;
  }
  f64 sum, squares, n = (f64)shape.count();
  add_segments(parts + 2 * (i64)channel * segments, segments, sum, squares);
  f64 v = (squares - sum * sum / n) / n;
  mean[channel] = (A)((f64)widen(x[shape.at(channel, 0)]) + sum / n);
  variance[channel] = (A)(v < 0 ? 0 : v);
}

// batch_scale sets 1/√(variance + eps) for each channel.
template <typename A> DEVICE void batch_scale(const A *variance, A *rstd, int channels, f64 eps) {
  int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel < channels) rstd[channel] = (A)(1 / sqrt((f64)variance[channel] + eps));
}

// channel_of is the channel of element i, which lies where it is counted.
DEVICE int channel_of(Shape shape, i64 i) {
  if ((i64)shape.n * shape.c * shape.l <= 0x7fffffff) return (i32)i / shape.l % shape.c;
  return (int)(i / shape.l % shape.c);
}

// by_element calls f for the channel and the elements of x and, if it is not null, y, and sets out to what it gives.
template <typename T, typename F> DEVICE void by_element(Shape shape, const T *x, const T *y, T *out, F f) {
  typedef Wide<T> A;
  constexpr int K = CHUNK<T>;
  i64 n = (i64)shape.n * shape.c * shape.l;
  if (shape.l % K == 0 && aligned16(x) && aligned16(y) && aligned16(out)) {
    for (i64 i = thread_index() * K; i < n; i += thread_count() * K) {
      A v[K], d[K];
      int channel = channel_of(shape, i);
      wide_load(v, x + i, true);
      if (y) wide_load(d, y + i, true);
      Vec<T, K> all;
#pragma unroll
      for (int j = 0; j < K; j++) all.v[j] = narrow<T>(f(channel, v[j], y ? d[j] : (A)0));
      store<K>(out + i, all);
    }
    return;
  }
  for (i64 i = thread_index(); i < n; i += thread_count())
    out[i] = narrow<T>(f(channel_of(shape, i), widen(x[i]), y ? widen(y[i]) : (A)0));
}

// P is the type of the parameters and of their gradients.
template <typename T, typename P>
DEVICE void batch_norm(const T *x, const Wide<T> *mean, const Wide<T> *rstd, const P *w, const P *b, T *y,
                       Shape shape) {
  typedef Wide<T> A;
  by_element(shape, x, (const T *)nullptr, y, [=](int k, A v, A) {
    v = (v - mean[k]) * rstd[k];
    return w ? v * widen(w[k]) + widen(b[k]) : v;
  });
}

// batch_grad_sums sets the sums of dy and of dy·(x−mean)·rstd over a segment.
template <typename T>
DEVICE void batch_grad_sums(const T *x, const Wide<T> *mean, const Wide<T> *rstd, const T *dy, f64 *parts,
                              Shape shape) {
  typedef Wide<T> A;
  for (int channel = blockIdx.y; channel < shape.c; channel += gridDim.y) {
    A m = mean[channel], s = rstd[channel];
    f64 sum = 0, inner = 0;
    segment(shape, channel, x, dy, [&](A v, A slope) {
      f64 d = (f64)slope;
      sum += d;
      inner += d * (f64)((v - m) * s);
    });
    sum = row_sum(sum);
    inner = row_sum(inner);
    if (threadIdx.x == 0) {
      f64 *to = parts + 2 * ((i64)channel * gridDim.x + blockIdx.x);
      to[0] = sum;
      to[1] = inner;
    }
  }
}

// batch_grad_params adds the segments up: the gradients of weight and bias, and in means those of a channel's elements.
template <typename P>
DEVICE void batch_grad_params(const f64 *parts, int segments, P *dweight, P *dbias, Wide<P> *means, Shape shape,
                                int constant) {
  typedef Wide<P> A;
  int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= shape.c) return;
  f64 sum, inner, n = shape.count() > 0 ? (f64)shape.count() : 1;
  add_segments(parts + 2 * (i64)channel * segments, segments, sum, inner);
  dweight[channel] = narrow<P>((A)inner);
  dbias[channel] = narrow<P>((A)sum);
  means[2 * channel] = constant ? (A)0 : (A)(sum / n);
  means[2 * channel + 1] = constant ? (A)0 : (A)(inner / n);
}

template <typename T, typename P>
DEVICE void batch_norm_grad(const T *x, const Wide<T> *mean, const Wide<T> *rstd, const T *dy, const P *w,
                            const Wide<T> *means, T *dx, Shape shape) {
  typedef Wide<T> A;
  by_element(shape, x, dy, dx, [=](int k, A v, A d) {
    A s = rstd[k], f = w ? s * widen(w[k]) : s;
    return f * (d - means[2 * k] - (v - mean[k]) * s * means[2 * k + 1]);
  });
}

#define KERNELS(S, T)                                                                                                 \
  KERNEL batch_moments_##S(const T *x, f64 *parts, Shape shape) { batch_moments<T>(x, parts, shape); }                \
  KERNEL batch_stats_##S(const T *x, const f64 *parts, int segments, Wide<T> *mean, Wide<T> *variance, Shape shape) { \
    batch_stats<T>(x, parts, segments, mean, variance, shape);                                                        \
  }                                                                                                                   \
  KERNEL batch_grad_sums_##S(const T *x, const Wide<T> *mean, const Wide<T> *rstd, const T *dy, f64 *parts,           \
                             Shape shape) {                                                                           \
    batch_grad_sums<T>(x, mean, rstd, dy, parts, shape);                                                              \
  }                                                                                                                   \
  KERNEL batch_grad_params_##S(const f64 *parts, int segments, T *dweight, T *dbias, Wide<T> *means, Shape shape,     \
                               int constant) {                                                                        \
    batch_grad_params<T>(parts, segments, dweight, dbias, means, shape, constant);                                    \
  }

#define AFFINE(S, T, P)                                                                                               \
  KERNEL batch_norm_##S(const T *x, const Wide<T> *mean, const Wide<T> *rstd, const P *w, const P *b, T *y,           \
                        Shape shape) {                                                                                \
    batch_norm(x, mean, rstd, w, b, y, shape);                                                                        \
  }                                                                                                                   \
  KERNEL batch_norm_grad_##S(const T *x, const Wide<T> *mean, const Wide<T> *rstd, const T *dy, const P *w,           \
                             const Wide<T> *means, T *dx, Shape shape) {                                              \
    batch_norm_grad(x, mean, rstd, dy, w, means, dx, shape);                                                          \
  }

KERNELS(f32, f32)
KERNELS(f64, f64)
KERNELS(bf16, bf16)
KERNELS(f16, f16)

AFFINE(f32, f32, f32)
AFFINE(f64, f64, f64)
AFFINE(bf16, bf16, bf16)
AFFINE(f16, f16, f16)
AFFINE(bf16_f32, bf16, f32)
AFFINE(f16_f32, f16, f32)

KERNEL batch_scale_f32(const f32 *variance, f32 *rstd, int channels, f64 eps) {
  batch_scale(variance, rstd, channels, eps);
}
KERNEL batch_scale_f64(const f64 *variance, f64 *rstd, int channels, f64 eps) {
  batch_scale(variance, rstd, channels, eps);
}
