// SPDX-License-Identifier: Apache-2.0

// Layer norm and RMS norm (which has no mean) over rows, and the gradients of their parameters.

#include "rows.cuh"

using namespace rows;

// norm sets y = (x−mean)·rstd·w + b; w, or b, or both may be null. The variance comes from one pass, by the sums of the
// distances to the first element and of their squares.
template <typename T, bool Centred>
__device__ void norm(const T *x, const T *w, const T *b, T *y, Compute<T> *means, Compute<T> *rstds, int n, int cols,
                     double eps) {
  using A = Compute<T>;
  constexpr int K = CHUNK<T>;
  int row = rowIndex();
  if (row >= n) return;
  x += (int64_t)row * cols;
  y += (int64_t)row * cols;
  bool in = aligned16(x), out = aligned16(y), weights = aligned16(w), biases = aligned16(b);
  int chunks = chunksOf(cols, K);
  A first = Centred && cols > 0 ? widen(x[0]) : (A)0;
  double from = first, sum = 0, squares = 0;
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    A v[K];
    load(v, x, c, cols, in, first);
#pragma unroll
    for (int i = 0; i < K; i++) {
      double d = (double)v[i] - from;
      if (Centred) sum += d;
      squares += d * d;
    }
  }
  squares = rowSum(squares);
  double mean = 0, variance = squares / cols;
  if (Centred) {
    sum = rowSum(sum);
    mean = from + sum / cols;
    double v = (squares - sum * sum / cols) / cols;
    variance = v < 0 ? 0 : v;
  }
  A m = (A)mean, s = (A)(1 / sqrt(variance + eps));
  if (threadIdx.x == 0) {
    if (Centred) means[row] = m;
    rstds[row] = s;
  }
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    A v[K], p[K];
    load(v, x, c, cols, in, (A)0);
#pragma unroll
    for (int i = 0; i < K; i++) v[i] = Centred ? (v[i] - m) * s : v[i] * s;
    if (w) {
      load(p, w, c, cols, weights, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) v[i] *= p[i];
    }
    if (b) {
      load(p, b, c, cols, biases, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) v[i] += p[i];
    }
    store(y, c, cols, out, v);
  }
}

// normGrad sets dx; w may be null.
template <typename T, bool Centred>
__device__ void normGrad(const T *x, const Compute<T> *means, const Compute<T> *rstds, const T *dy, const T *w, T *dx,
                         int n, int cols) {
  using A = Compute<T>;
  constexpr int K = CHUNK<T>;
  int row = rowIndex();
  if (row >= n) return;
  int64_t at = (int64_t)row * cols;
  x += at, dy += at, dx += at;
  bool in = aligned16(x), grad = aligned16(dy), out = aligned16(dx), weights = aligned16(w);
  int chunks = chunksOf(cols, K);
  A m = Centred ? means[row] : (A)0, s = rstds[row];
  double sum = 0, inner = 0;
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    A v[K], d[K], p[K];
    load(v, x, c, cols, in, (A)0);
    load(d, dy, c, cols, grad, (A)0);
    if (w) {
      load(p, w, c, cols, weights, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) d[i] *= p[i];
    }
#pragma unroll
    for (int i = 0; i < K; i++) {
      if (Centred) sum += (double)d[i];
      inner += (double)d[i] * (double)(Centred ? (v[i] - m) * s : v[i] * s);
    }
  }
  inner = rowSum(inner);
  A a = Centred ? (A)(rowSum(sum) / cols) : (A)0;
  A b = Centred ? (A)(inner / cols) : (A)(inner / cols * (double)s);
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    A v[K], d[K], p[K];
    load(v, x, c, cols, in, (A)0);
    load(d, dy, c, cols, grad, (A)0);
    if (w) {
      load(p, w, c, cols, weights, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) d[i] *= p[i];
    }
#pragma unroll
    for (int i = 0; i < K; i++) v[i] = s * (Centred ? d[i] - a - (v[i] - m) * s * b : d[i] - v[i] * b);
    store(dx, c, cols, out, v);
  }
}

// The rows of a block of rows, and the threads over columns and over rows that add them up.
constexpr int BLOCK_ROWS = 64, ACROSS = 32, DOWN = 8;

// normParts sets the sums over a block of rows, blockIdx.x, of dy·(x−mean)·rstd and, unless bias is null, of dy, for
// ACROSS chunks of columns: 8 rows a thread in order, then the threads' sums in order.
template <typename T, bool Centred>
__device__ void normParts(const T *x, const Compute<T> *means, const Compute<T> *rstds, const T *dy, double *weight,
                          double *bias, int n, int cols) {
  using A = Compute<T>;
  constexpr int K = CHUNK<T>;
  __shared__ double part[2][DOWN][ACROSS * K];
  int tile = blockIdx.y * ACROSS, c = tile + threadIdx.x;
  double dw[K], db[K];
#pragma unroll
  for (int i = 0; i < K; i++) dw[i] = db[i] = 0;
  int first = blockIdx.x * BLOCK_ROWS + threadIdx.y * (BLOCK_ROWS / DOWN);
  if (c < chunksOf(cols, K)) {
    for (int r = first; r < min(first + BLOCK_ROWS / DOWN, n); r++) {
      const T *xs = x + (int64_t)r * cols, *dys = dy + (int64_t)r * cols;
      A v[K], d[K], m = Centred ? means[r] : (A)0, s = rstds[r];
      load(v, xs, c, cols, aligned16(xs), (A)0);
      load(d, dys, c, cols, aligned16(dys), (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) {
        dw[i] += (double)(d[i] * (Centred ? (v[i] - m) * s : v[i] * s));
        db[i] += (double)d[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < K; i++) {
    part[0][threadIdx.y][threadIdx.x * K + i] = dw[i];
    part[1][threadIdx.y][threadIdx.x * K + i] = db[i];
  }
  __syncthreads();
  int thread = threadIdx.y * ACROSS + threadIdx.x;
  for (int i = thread; i < 2 * ACROSS * K; i += ACROSS * DOWN) {
    int which = i / (ACROSS * K), at = i % (ACROSS * K), col = tile * K + at;
    double *to = which ? bias : weight;
    if (!to || col >= cols) continue;
    double sum = 0;
    for (int k = 0; k < DOWN; k++) sum += part[which][k][at];
    to[(int64_t)blockIdx.x * cols + col] = sum;
  }
}

// normParamSum adds up blocks of sums in order: those of weight, and with blockIdx.y = 1 those of bias. The threads of
// a block load what its first warp adds up.
template <typename T>
__device__ void normParamSum(const double *weight, const double *bias, T *dweight, T *dbias, int blocks, int cols) {
  constexpr int AT_ONCE = 64;
  __shared__ double tile[AT_ONCE][ACROSS];
  const double *from = blockIdx.y ? bias : weight;
  T *to = blockIdx.y ? dbias : dweight;
  int col = blockIdx.x * ACROSS + threadIdx.x;
  double sum = 0;
  for (int first = 0; first < blocks; first += AT_ONCE) {
#pragma unroll
    for (int k = threadIdx.y; k < AT_ONCE; k += DOWN)
      tile[k][threadIdx.x] = first + k < blocks && col < cols ? from[(int64_t)(first + k) * cols + col] : 0;
    __syncthreads();
    if (threadIdx.y == 0) {
      int n = min(AT_ONCE, blocks - first);
      for (int k = 0; k < n; k++) sum += tile[k][threadIdx.x];
    }
    __syncthreads();
  }
  if (threadIdx.y == 0 && col < cols) to[col] = narrow<T>((Compute<T>)sum);
}

#define KERNELS(S, T)                                                                                                \
  extern "C" __global__ void layer_norm_##S(const T *x, const T *w, const T *b, T *y, Compute<T> *mean,              \
                                            Compute<T> *rstd, int n, int cols, double eps) {                         \
    norm<T, true>(x, w, b, y, mean, rstd, n, cols, eps);                                                             \
  }                                                                                                                  \
  extern "C" __global__ void rms_norm_##S(const T *x, const T *w, T *y, Compute<T> *rrms, int n, int cols,           \
                                          double eps) {                                                              \
    norm<T, false>(x, w, nullptr, y, nullptr, rrms, n, cols, eps);                                                   \
  }                                                                                                                  \
  extern "C" __global__ void layer_norm_grad_##S(const T *x, const Compute<T> *mean, const Compute<T> *rstd,         \
                                                 const T *dy, const T *w, T *dx, int n, int cols) {                  \
    normGrad<T, true>(x, mean, rstd, dy, w, dx, n, cols);                                                            \
  }                                                                                                                  \
  extern "C" __global__ void rms_norm_grad_##S(const T *x, const Compute<T> *rrms, const T *dy, const T *w, T *dx,   \
                                               int n, int cols) {                                                    \
    normGrad<T, false>(x, nullptr, rrms, dy, w, dx, n, cols);                                                        \
  }                                                                                                                  \
  extern "C" __global__ void layer_norm_parts_##S(const T *x, const Compute<T> *mean, const Compute<T> *rstd,        \
                                                  const T *dy, double *weight, double *bias, int n, int cols) {      \
    normParts<T, true>(x, mean, rstd, dy, weight, bias, n, cols);                                                    \
  }                                                                                                                  \
  extern "C" __global__ void rms_norm_parts_##S(const T *x, const Compute<T> *rrms, const T *dy, double *weight,     \
                                                int n, int cols) {                                                   \
    normParts<T, false>(x, nullptr, rrms, dy, weight, nullptr, n, cols);                                             \
  }                                                                                                                  \
  extern "C" __global__ void norm_param_sum_##S(const double *weight, const double *bias, T *dweight, T *dbias,      \
                                                int blocks, int cols) {                                              \
    normParamSum<T>(weight, bias, dweight, dbias, blocks, cols);                                                     \
  }

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(bf16, __nv_bfloat16)
KERNELS(f16, __half)
