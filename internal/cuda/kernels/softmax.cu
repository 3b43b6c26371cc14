// SPDX-License-Identifier: Apache-2.0

// Softmax and its relatives over rows.

#include "index.cuh"
#include "rows.cuh"

// exp_sums finds the largest element of a row, which NaN is not, and the sum of e^(x−largest), in one pass. A row that
// has NaN, +∞, or nothing but −∞ has the sum NaN; one of no columns 0.
template <typename T> DEVICE void exp_sums(const T *row, int cols, Wide<T> &most, f64 &sum) {
  typedef Wide<T> A;
  constexpr int n = CHUNK<T>;
  bool aligned = aligned16(row);
  A m = -INFINITY;
  f64 s = 0;
  for (int c = threadIdx.x; c < chunks_of(cols, n); c += blockDim.x) {
    A v[n];
    load_chunk(v, row, c, cols, aligned, -(A)INFINITY);
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
  most = row_max(m);
  if (m > -INFINITY) s *= exponential(m - most);
  sum = row_sum(s);
  if (most == -INFINITY && cols > 0) sum = NAN;
}

template <typename T> DEVICE void softmax(const T *x, T *y, int n, int cols) {
  typedef Wide<T> A;
  if (row_index() >= n) return;
  x += (i64)row_index() * cols;
  y += (i64)row_index() * cols;
  A m;
  f64 sum;
  exp_sums(x, cols, m, sum);
  A f = (A)(1 / sum);
  bool in = aligned16(x), out = aligned16(y);
  for (int c = threadIdx.x; c < chunks_of(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>];
    load_chunk(v, x, c, cols, in, m);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) v[i] = exponential(v[i] - m) * f;
    store_chunk(y, c, cols, out, v);
  }
}

template <typename T> DEVICE void softmax_grad(const T *y, const T *dy, T *dx, int n, int cols) {
  typedef Wide<T> A;
  if (row_index() >= n) return;
  i64 at = (i64)row_index() * cols;
  y += at, dy += at, dx += at;
  bool in = aligned16(y), grad = aligned16(dy), out = aligned16(dx);
  f64 s = 0;
  for (int c = threadIdx.x; c < chunks_of(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>], d[CHUNK<T>];
    load_chunk(v, y, c, cols, in, (A)0);
    load_chunk(d, dy, c, cols, grad, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) s += (f64)v[i] * (f64)d[i];
  }
  A dot = (A)row_sum(s);
  for (int c = threadIdx.x; c < chunks_of(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>], d[CHUNK<T>];
    load_chunk(v, y, c, cols, in, (A)0);
    load_chunk(d, dy, c, cols, grad, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) v[i] *= d[i] - dot;
    store_chunk(dx, c, cols, out, v);
  }
}

template <typename T> DEVICE void log_softmax(const T *x, T *y, int n, int cols) {
  typedef Wide<T> A;
  if (row_index() >= n) return;
  x += (i64)row_index() * cols;
  y += (i64)row_index() * cols;
  A m;
  f64 sum;
  exp_sums(x, cols, m, sum);
  f64 lse = (f64)m + log(sum);
  bool in = aligned16(x), out = aligned16(y);
  for (int c = threadIdx.x; c < chunks_of(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>];
    load_chunk(v, x, c, cols, in, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) v[i] = (A)((f64)v[i] - lse);
    store_chunk(y, c, cols, out, v);
  }
}

template <typename T> DEVICE void log_softmax_grad(const T *y, const T *dy, T *dx, int n, int cols) {
  typedef Wide<T> A;
  if (row_index() >= n) return;
  i64 at = (i64)row_index() * cols;
  y += at, dy += at, dx += at;
  bool in = aligned16(y), grad = aligned16(dy), out = aligned16(dx);
  f64 s = 0;
  for (int c = threadIdx.x; c < chunks_of(cols, CHUNK<T>); c += blockDim.x) {
    A d[CHUNK<T>];
    load_chunk(d, dy, c, cols, grad, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) s += d[i];
  }
  A sum = (A)row_sum(s);
  for (int c = threadIdx.x; c < chunks_of(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>], d[CHUNK<T>];
    load_chunk(v, y, c, cols, in, (A)0);
    load_chunk(d, dy, c, cols, grad, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) v[i] = d[i] - exponential(v[i]) * sum;
    store_chunk(dx, c, cols, out, v);
  }
}

// cross_entropy sets loss, unless they are null the log-sum-exp and the slope, which may be x. Rows of x and of slope
// are so many elements apart. A bad target is a fault, and its row one to ignore.
template <typename T>
DEVICE void cross_entropy(const T *x, Indices targets, Wide<T> *loss, Wide<T> *lses, T *slope, int n, int cols,
                          i64 x_stride, i64 slope_stride, i64 ignore, FaultBlock *block, u32 op) {
  typedef Wide<T> A;
  int row = row_index();
  if (row >= n) return;
  x += row * x_stride;
  i64 k = targets[row];
  Range range{cols, 1, ignore};
  if (range.bad(k)) {
    if (threadIdx.x == 0) index_fault(block, op, targets, range);
    k = ignore;
  }
  bool ignored = k == ignore;
  A target = ignored ? (A)0 : widen(x[k]);
  A m;
  f64 sum;
  exp_sums(x, cols, m, sum);
  f64 lse = (f64)m + log(sum);
  if (threadIdx.x == 0) {
    loss[row] = ignored ? (A)0 : (A)(lse - (f64)target);
    if (lses) lses[row] = (A)lse;
  }
  if (!slope) return;
  slope += row * slope_stride;
  A f = (A)(1 / sum);
  bool in = aligned16(x), out = aligned16(slope);
  for (int c = threadIdx.x; c < chunks_of(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>];
    load_chunk(v, x, c, cols, in, m);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) {
      v[i] = ignored ? (A)0 : exponential(v[i] - m) * f;
      if (!ignored && c * CHUNK<T> + i == k) v[i] -= 1;
    }
    store_chunk(slope, c, cols, out, v);
  }
}

template <typename T>
DEVICE void cross_entropy_grad(const T *x, Indices targets, const Wide<T> *lses, const Wide<T> *dloss,
                                 i64 stride, T *dx, int n, int cols, i64 ignore, FaultBlock *block,
                                 u32 op) {
  typedef Wide<T> A;
  int row = row_index();
  if (row >= n) return;
  x += (i64)row * cols;
  dx += (i64)row * cols;
  i64 k = targets[row];
  Range range{cols, 1, ignore};
  if (range.bad(k)) {
    if (threadIdx.x == 0) index_fault(block, op, targets, range);
    k = ignore;
  }
  bool ignored = k == ignore;
  A lse = lses[row], g = dloss[row * stride];
  bool in = aligned16(x), out = aligned16(dx);
  for (int c = threadIdx.x; c < chunks_of(cols, CHUNK<T>); c += blockDim.x) {
    A v[CHUNK<T>];
    load_chunk(v, x, c, cols, in, (A)0);
#pragma unroll
    for (int i = 0; i < CHUNK<T>; i++) {
      A e = exponential(v[i] - lse);
      if (c * CHUNK<T> + i == k) e -= 1;
      v[i] = ignored ? (A)0 : e * g;
    }
    store_chunk(dx, c, cols, out, v);
  }
}

#define KERNELS(S, T)                                                                                                 \
  KERNEL softmax_##S(const T *x, T *y, int n, int cols) { softmax<T>(x, y, n, cols); }                                \
  KERNEL softmax_grad_##S(const T *y, const T *dy, T *dx, int n, int cols) {                                          \
    softmax_grad<T>(y, dy, dx, n, cols);                                                                              \
  }                                                                                                                   \
  KERNEL log_softmax_##S(const T *x, T *y, int n, int cols) { log_softmax<T>(x, y, n, cols); }                        \
  KERNEL log_softmax_grad_##S(const T *y, const T *dy, T *dx, int n, int cols) {                                      \
    log_softmax_grad<T>(y, dy, dx, n, cols);                                                                          \
  }                                                                                                                   \
  KERNEL cross_entropy_##S(const T *x, const void *targets, int wide, Wide<T> *loss,                                  \
                                               Wide<T> *lse, T *slope, int n, int cols, i64 x_stride,                 \
                                               i64 slope_stride, i64 ignore, FaultBlock *block, u32 op) {             \
    cross_entropy<T>(x, Indices{targets, wide}, loss, lse, slope, n, cols, x_stride, slope_stride, ignore, block,     \
                     op);                                                                                             \
  }                                                                                                                   \
  KERNEL cross_entropy_grad_##S(const T *x, const void *targets, int wide, const Wide<T> *lse,                        \
                                                    const Wide<T> *dloss, i64 stride, T *dx, int n, int cols,         \
                                                    i64 ignore, FaultBlock *block, u32 op) {                          \
    cross_entropy_grad<T>(x, Indices{targets, wide}, lse, dloss, stride, dx, n, cols, ignore, block, op);             \
  }

KERNELS(f32, f32)
KERNELS(f64, f64)
KERNELS(bf16, bf16)
KERNELS(f16, f16)
