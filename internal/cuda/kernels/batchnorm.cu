// SPDX-License-Identifier: Apache-2.0

// Batch norm over the channels of x [N,C,L]. The elements of a channel are numbered from 0 to N·L; a block sums a
// segment of them, and the segments are added in order. How many there are follows from the shape.

#include "rows.cuh"

using namespace rows;

// Shape is that of x, with the elements of a segment.
struct Shape {
  int n, c, l, segment;
  __device__ int64_t count() const { return (int64_t)n * l; }
  // at is where element i of a channel lies.
  __device__ int64_t at(int channel, int64_t i) const {
    if (count() <= INT32_MAX) {
      int32_t k = (int32_t)i, plane = k / l;
      return ((int64_t)plane * c + channel) * l + (k - plane * l);
    }
    return (i / l * c + channel) * l + i % l;
  }
};

// segment calls add for where the elements of segment blockIdx.x of a channel lie.
template <typename F> __device__ void segment(Shape shape, int channel, F add) {
  int64_t first = (int64_t)blockIdx.x * shape.segment, end = min(first + shape.segment, shape.count());
  for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x) add(shape.at(channel, i));
}

// batchMoments sets the sums, over a segment, of the distances of x to its channel's first element and of their squares.
template <typename T> __device__ void batchMoments(const T *x, double *parts, Shape shape) {
  for (int channel = blockIdx.y; channel < shape.c; channel += gridDim.y) {
    double from = (double)widen(x[shape.at(channel, 0)]), sum = 0, squares = 0;
    segment(shape, channel, [&](int64_t i) {
      double d = (double)widen(x[i]) - from;
      sum += d;
      squares += d * d;
    });
    sum = rowSum(sum);
    squares = rowSum(squares);
    if (threadIdx.x == 0) {
      double *to = parts + 2 * ((int64_t)channel * gridDim.x + blockIdx.x);
      to[0] = sum;
      to[1] = squares;
    }
  }
}

// batchStats makes mean and variance of the sums, a thread a channel.
template <typename T>
__device__ void batchStats(const T *x, const double *parts, int segments, Compute<T> *mean, Compute<T> *variance,
                           Shape shape) {
  using A = Compute<T>;
  int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= shape.c) return;
  if (shape.count() == 0) {
    mean[channel] = variance[channel] = 0;
    return;
  }
  double sum = 0, squares = 0, n = (double)shape.count();
  for (int i = 0; i < segments; i++) {
    const double *p = parts + 2 * ((int64_t)channel * segments + i);
    sum += p[0];
    squares += p[1];
  }
  double v = (squares - sum * sum / n) / n;
  mean[channel] = (A)((double)widen(x[shape.at(channel, 0)]) + sum / n);
  variance[channel] = (A)(v < 0 ? 0 : v);
}

// batchScale sets 1/√(variance + eps) for each channel.
template <typename A> __device__ void batchScale(const A *variance, A *rstd, int channels, double eps) {
  int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel < channels) rstd[channel] = (A)(1 / sqrt((double)variance[channel] + eps));
}

// channelOf is the channel of element i, which lies where it is counted.
__device__ inline int channelOf(Shape shape, int64_t i) {
  if ((int64_t)shape.n * shape.c * shape.l <= INT32_MAX) return (int32_t)i / shape.l % shape.c;
  return (int)(i / shape.l % shape.c);
}

template <typename T>
__device__ void batchNorm(const T *x, const Compute<T> *mean, const Compute<T> *rstd, const T *w, const T *b, T *y,
                          Shape shape) {
  using A = Compute<T>;
  int64_t n = (int64_t)shape.n * shape.c * shape.l, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    int k = channelOf(shape, i);
    A v = (widen(x[i]) - mean[k]) * rstd[k];
    if (w) v = v * widen(w[k]) + widen(b[k]);
    y[i] = narrow<T>(v);
  }
}

// batchGradSums sets the sums of dy and of dy·(x−mean)·rstd over a segment.
template <typename T>
__device__ void batchGradSums(const T *x, const Compute<T> *mean, const Compute<T> *rstd, const T *dy, double *parts,
                              Shape shape) {
  using A = Compute<T>;
  for (int channel = blockIdx.y; channel < shape.c; channel += gridDim.y) {
    A m = mean[channel], s = rstd[channel];
    double sum = 0, inner = 0;
    segment(shape, channel, [&](int64_t i) {
      double d = (double)widen(dy[i]);
      sum += d;
      inner += d * (double)((widen(x[i]) - m) * s);
    });
    sum = rowSum(sum);
    inner = rowSum(inner);
    if (threadIdx.x == 0) {
      double *to = parts + 2 * ((int64_t)channel * gridDim.x + blockIdx.x);
      to[0] = sum;
      to[1] = inner;
    }
  }
}

// batchGradParams adds the segments up: the gradients of weight and bias, and in means those of a channel's elements.
template <typename T>
__device__ void batchGradParams(const double *parts, int segments, T *dweight, T *dbias, Compute<T> *means, Shape shape,
                                int constant) {
  using A = Compute<T>;
  int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= shape.c) return;
  double sum = 0, inner = 0, n = shape.count() > 0 ? (double)shape.count() : 1;
  for (int i = 0; i < segments; i++) {
    const double *p = parts + 2 * ((int64_t)channel * segments + i);
    sum += p[0];
    inner += p[1];
  }
  dweight[channel] = narrow<T>((A)inner);
  dbias[channel] = narrow<T>((A)sum);
  means[2 * channel] = constant ? (A)0 : (A)(sum / n);
  means[2 * channel + 1] = constant ? (A)0 : (A)(inner / n);
}

template <typename T>
__device__ void batchNormGrad(const T *x, const Compute<T> *mean, const Compute<T> *rstd, const T *dy, const T *w,
                              const Compute<T> *means, T *dx, Shape shape) {
  using A = Compute<T>;
  int64_t n = (int64_t)shape.n * shape.c * shape.l, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    int k = channelOf(shape, i);
    A s = rstd[k], f = w ? s * widen(w[k]) : s;
    dx[i] = narrow<T>(f * (widen(dy[i]) - means[2 * k] - (widen(x[i]) - mean[k]) * s * means[2 * k + 1]));
  }
}

#define KERNELS(S, T)                                                                                                 \
  extern "C" __global__ void batch_moments_##S(const T *x, double *parts, Shape shape) {                              \
    batchMoments<T>(x, parts, shape);                                                                                 \
  }                                                                                                                   \
  extern "C" __global__ void batch_stats_##S(const T *x, const double *parts, int segments, Compute<T> *mean,         \
                                             Compute<T> *variance, Shape shape) {                                     \
    batchStats<T>(x, parts, segments, mean, variance, shape);                                                         \
  }                                                                                                                   \
  extern "C" __global__ void batch_norm_##S(const T *x, const Compute<T> *mean, const Compute<T> *rstd, const T *w,   \
                                            const T *b, T *y, Shape shape) {                                          \
    batchNorm<T>(x, mean, rstd, w, b, y, shape);                                                                      \
  }                                                                                                                   \
  extern "C" __global__ void batch_grad_sums_##S(const T *x, const Compute<T> *mean, const Compute<T> *rstd,          \
                                                 const T *dy, double *parts, Shape shape) {                           \
    batchGradSums<T>(x, mean, rstd, dy, parts, shape);                                                                \
  }                                                                                                                   \
  extern "C" __global__ void batch_grad_params_##S(const double *parts, int segments, T *dweight, T *dbias,           \
                                                   Compute<T> *means, Shape shape, int constant) {                    \
    batchGradParams<T>(parts, segments, dweight, dbias, means, shape, constant);                                      \
  }                                                                                                                   \
  extern "C" __global__ void batch_norm_grad_##S(const T *x, const Compute<T> *mean, const Compute<T> *rstd,          \
                                                 const T *dy, const T *w, const Compute<T> *means, T *dx,             \
                                                 Shape shape) {                                                       \
    batchNormGrad<T>(x, mean, rstd, dy, w, means, dx, shape);                                                         \
  }

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(bf16, __nv_bfloat16)
KERNELS(f16, __half)

extern "C" __global__ void batch_scale_f32(const float *variance, float *rstd, int channels, double eps) {
  batchScale(variance, rstd, channels, eps);
}
extern "C" __global__ void batch_scale_f64(const double *variance, double *rstd, int channels, double eps) {
  batchScale(variance, rstd, channels, eps);
}
