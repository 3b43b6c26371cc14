// SPDX-License-Identifier: Apache-2.0

// Softmax and its relatives over rows.

#include "index.cuh"
#include "rows.cuh"

using namespace rows;

// expSums finds the largest element of a row, which NaN is not, and the sum of e^(x−largest), in one pass. A row that
// has NaN, +∞, or nothing but −∞ has the sum NaN; one of no columns 0.
template <typename T> __device__ inline void expSums(const T *row, int cols, Compute<T> &most, double &sum) {
  using A = Compute<T>;
  constexpr int n = CHUNK<T>;
  bool aligned = aligned16(row);
  A m = -INFINITY;
  double s = 0;
  for (int c = threadIdx.x; c < chunksOf(cols, n); c += blockDim.x) {
    A v[n];
    load(v, row, c, cols, aligned, (A)-INFINITY);
    A top = v[0];
#pragma unroll
    for (int i = 1; i < n; i++) top = larger(top, v[i]);
    if (top > m) {
      s *= exponential(m - top);
      m = top;
    }
#pragma unroll
    for (int i = 0; i < n; i++) {
      if (m > -INFINITY)
        s += exponential(v[i] - m);
      else if (v[i] != v[i])
        s = NAN;
    }
  }
  most = rowMax(m);
  if (m > -INFINITY) s *= exponential(m - most);
  sum = rowSum(s);
  if (most == -INFINITY && cols > 0) sum = NAN;
}

template <typename T> __device__ void softmax(const T *x, T *y, int n, int cols) {
  using A = Compute<T>;
  if (rowIndex() >= n) return;
  x += (int64_t)rowIndex() * cols;
  y += (int64_t)rowIndex() * cols;
  A m;
  double sum;
  expSums(x, cols, m, sum);
  A f = (A)(1 / sum);
  bool in = aligned16(x), out = aligned16(y);
  for (int c = threadIdx.x; c < chunksOf(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>];
    load(v, x, c, cols, in, m);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) v[i] = exponential(v[i] - m) * f;
    store(y, c, cols, out, v);
  }
}

template <typename T> __device__ void softmaxGrad(const T *y, const T *dy, T *dx, int n, int cols) {
  using A = Compute<T>;
  if (rowIndex() >= n) return;
  int64_t at = (int64_t)rowIndex() * cols;
  y += at, dy += at, dx += at;
  bool in = aligned16(y), grad = aligned16(dy), out = aligned16(dx);
  double s = 0;
  for (int c = threadIdx.x; c < chunksOf(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>], d[CHUNK<T>];
    load(v, y, c, cols, in, (A)0);
    load(d, dy, c, cols, grad, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) s += (double)v[i] * (double)d[i];
  }
  A dot = (A)rowSum(s);
  for (int c = threadIdx.x; c < chunksOf(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>], d[CHUNK<T>];
    load(v, y, c, cols, in, (A)0);
    load(d, dy, c, cols, grad, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) v[i] *= d[i] - dot;
    store(dx, c, cols, out, v);
  }
}

template <typename T> __device__ void logSoftmax(const T *x, T *y, int n, int cols) {
  using A = Compute<T>;
  if (rowIndex() >= n) return;
  x += (int64_t)rowIndex() * cols;
  y += (int64_t)rowIndex() * cols;
  A m;
  double sum;
  expSums(x, cols, m, sum);
  double lse = (double)m + log(sum);
  bool in = aligned16(x), out = aligned16(y);
  for (int c = threadIdx.x; c < chunksOf(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>];
    load(v, x, c, cols, in, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) v[i] = (A)((double)v[i] - lse);
    store(y, c, cols, out, v);
  }
}

template <typename T> __device__ void logSoftmaxGrad(const T *y, const T *dy, T *dx, int n, int cols) {
  using A = Compute<T>;
  if (rowIndex() >= n) return;
  int64_t at = (int64_t)rowIndex() * cols;
  y += at, dy += at, dx += at;
  bool in = aligned16(y), grad = aligned16(dy), out = aligned16(dx);
  double s = 0;
  for (int c = threadIdx.x; c < chunksOf(cols, CHUNK<T>); c += blockDim.x) {
    A d[CHUNK<T>];
    load(d, dy, c, cols, grad, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) s += d[i];
  }
  A sum = (A)rowSum(s);
  for (int c = threadIdx.x; c < chunksOf(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>], d[CHUNK<T>];
    load(v, y, c, cols, in, (A)0);
    load(d, dy, c, cols, grad, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) v[i] = d[i] - exponential(v[i]) * sum;
    store(dx, c, cols, out, v);
  }
}

// crossEntropy sets loss, unless they are null the log-sum-exp and the slope, which may be x. A bad target is a fault,
// and its row one to ignore.
template <typename T>
__device__ void crossEntropy(const T *x, Indices targets, Compute<T> *loss, Compute<T> *lses, T *slope, int n, int cols,
                             int64_t ignore, FaultBlock *fault, uint32_t op) {
  using A = Compute<T>;
  int row = rowIndex();
  if (row >= n) return;
  x += (int64_t)row * cols;
  int64_t k = targets[row];
  Range range{cols, 1, ignore};
  if (range.bad(k)) {
    if (threadIdx.x == 0) indexFault(fault, op, targets, range);
    k = ignore;
  }
  bool ignored = k == ignore;
  A target = ignored ? (A)0 : widen(x[k]);
  A m;
  double sum;
  expSums(x, cols, m, sum);
  double lse = (double)m + log(sum);
  if (threadIdx.x == 0) {
    loss[row] = ignored ? (A)0 : (A)(lse - (double)target);
    if (lses) lses[row] = (A)lse;
  }
  if (!slope) return;
  slope += (int64_t)row * cols;
  A f = (A)(1 / sum);
  bool in = aligned16(x), out = aligned16(slope);
  for (int c = threadIdx.x; c < chunksOf(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>];
    load(v, x, c, cols, in, m);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) {
      v[i] = ignored ? (A)0 : exponential(v[i] - m) * f;
      if (!ignored && c * CHUNK<T> + i == k) v[i] -= 1;
    }
    store(slope, c, cols, out, v);
  }
}

template <typename T>
__device__ void crossEntropyGrad(const T *x, Indices targets, const Compute<T> *lses, const Compute<T> *dloss,
                                 int64_t stride, T *dx, int n, int cols, int64_t ignore, FaultBlock *fault,
                                 uint32_t op) {
  using A = Compute<T>;
  int row = rowIndex();
  if (row >= n) return;
  x += (int64_t)row * cols;
  dx += (int64_t)row * cols;
  int64_t k = targets[row];
  Range range{cols, 1, ignore};
  if (range.bad(k)) {
    if (threadIdx.x == 0) indexFault(fault, op, targets, range);
    k = ignore;
  }
  bool ignored = k == ignore;
  A lse = lses[row], g = dloss[row * stride];
  bool in = aligned16(x), out = aligned16(dx);
  for (int c = threadIdx.x; c < chunksOf(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>];
    load(v, x, c, cols, in, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) {
      A e = exponential(v[i] - lse);
      if (c * CHUNK<T> + i == k) e -= 1;
      v[i] = ignored ? (A)0 : e * g;
    }
    store(dx, c, cols, out, v);
  }
}

#define KERNELS(S, T)                                                                                                 \
  extern "C" __global__ void softmax_##S(const T *x, T *y, int n, int cols) { softmax<T>(x, y, n, cols); }            \
  extern "C" __global__ void softmax_grad_##S(const T *y, const T *dy, T *dx, int n, int cols) {                      \
    softmaxGrad<T>(y, dy, dx, n, cols);                                                                               \
  }                                                                                                                   \
  extern "C" __global__ void log_softmax_##S(const T *x, T *y, int n, int cols) { logSoftmax<T>(x, y, n, cols); }     \
  extern "C" __global__ void log_softmax_grad_##S(const T *y, const T *dy, T *dx, int n, int cols) {                  \
    logSoftmaxGrad<T>(y, dy, dx, n, cols);                                                                            \
  }                                                                                                                   \
  extern "C" __global__ void cross_entropy_##S(const T *x, const void *targets, int wide, Compute<T> *loss,           \
                                               Compute<T> *lse, T *slope, int n, int cols, int64_t ignore,            \
                                               FaultBlock *fault, uint32_t op) {                                      \
    crossEntropy<T>(x, Indices{targets, wide}, loss, lse, slope, n, cols, ignore, fault, op);                         \
  }                                                                                                                   \
  extern "C" __global__ void cross_entropy_grad_##S(const T *x, const void *targets, int wide, const Compute<T> *lse, \
                                                    const Compute<T> *dloss, int64_t stride, T *dx, int n, int cols,  \
                                                    int64_t ignore, FaultBlock *fault, uint32_t op) {                 \
    crossEntropyGrad<T>(x, Indices{targets, wide}, lse, dloss, stride, dx, n, cols, ignore, fault, op);               \
  }

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(bf16, __nv_bfloat16)
KERNELS(f16, __half)
