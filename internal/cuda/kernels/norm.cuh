// SPDX-License-Identifier: Apache-2.0

// Layer norm and RMS norm (which has no mean) over rows, and the gradients of their parameters. y, and dy of the
// gradients, may be of a half type G where x is float32; x may then be the sum of a float32 and a G matrix (part; null:
// none). Each pair of types has a source.

#pragma once
#include "rows.cuh"

template <typename T, typename G> constexpr bool MIXED = true;
template <typename T> constexpr bool MIXED<T, T> = false;

// load_x reads chunk c of a row of x, to which a row of part is added if there is one.
template <typename T, typename G, int n>
DEVICE void load_x(Wide<T> (&v)[n], const T *x, const G *part, int c, int cols, bool in, Wide<T> fill) {
  load_chunk(v, x, c, cols, in, fill);
  if constexpr (MIXED<T, G>) {
    if (!part) return;
    Wide<T> p[n];
    load_chunk(p, part, c, cols, aligned<G, n>(part), (Wide<T>)0);
#pragma unroll
    for (int i = 0; i < n; i++) v[i] += p[i];
  }
}

// norm sets y = (x−mean)·rstd·w + b; w, or b, or both may be null. The variance comes from one pass, by the sums of the
// distances to the first element and of their squares.
template <typename T, typename G, bool Centred>
DEVICE void norm(const T *x, const G *part, const T *w, const T *b, G *y, Wide<T> *means, Wide<T> *rstds, int n,
                 int cols, f64 eps) {
  typedef Wide<T> A;
  constexpr int K = CHUNK<T>;
  int row = row_index();
  if (row >= n) return;
  x += (i64)row * cols;
  y += (i64)row * cols;
  if (part) part += (i64)row * cols;
  bool in = aligned16(x), out = aligned<G, K>(y), weights = aligned16(w), biases = aligned16(b);
  int chunks = chunks_of(cols, K);
  A first = Centred && cols > 0 ? widen(x[0]) : (A)0;
  if constexpr (MIXED<T, G>)
    if (Centred && part) first += widen(part[0]);
  f64 from = first, sum = 0, squares = 0;
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    A v[K];
    load_x(v, x, part, c, cols, in, first);
#pragma unroll
    for (int i = 0; i < K; i++) {
      f64 d = (f64)v[i] - from;
      if (Centred) sum += d;
      squares += d * d;
    }
  }
  squares = row_sum(squares);
  f64 mean = 0, variance = squares / cols;
  if (Centred) {
    sum = row_sum(sum);
    mean = from + sum / cols;
    f64 v = (squares - sum * sum / cols) / cols;
    variance = v < 0 ? 0 : v;
  }
  A m = (A)mean, s = (A)(1 / sqrt(variance + eps));
  if (threadIdx.x == 0) {
    if (Centred) means[row] = m;
    rstds[row] = s;
  }
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    A v[K], p[K];
    load_x(v, x, part, c, cols, in, (A)0);
#pragma unroll
    for (int i = 0; i < K; i++) v[i] = Centred ? (v[i] - m) * s : v[i] * s;
    if (w) {
      load_chunk(p, w, c, cols, weights, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) v[i] *= p[i];
    }
    if (b) {
      load_chunk(p, b, c, cols, biases, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) v[i] += p[i];
    }
    store_chunk(y, c, cols, out, v);
  }
}

// add_chunk adds chunk c of a row.
template <typename T, int n> DEVICE void add_chunk(Wide<T> (&v)[n], const T *row, int c, int cols) {
  Wide<T> p[n];
  load_chunk(p, row, c, cols, aligned<T, n>(row), (Wide<T>)0);
#pragma unroll
  for (int i = 0; i < n; i++) v[i] = p[i] + v[i];
}

// store_rounded writes v to chunk c of a row of low as well, if there is one.
template <typename T, typename G, int n>
DEVICE void store_rounded(G *low, i64 at, int c, int cols, const Wide<T> (&v)[n]) {
  if constexpr (MIXED<T, G>)
    if (low) store_chunk(low + at, c, cols, aligned<G, n>(low + at), v);
}

// norm_grad sets dx; w may be null. So may more, to which dx is added, and where it may lie, and low, which gets dx
// rounded.
template <typename T, typename G, bool Centred>
DEVICE void norm_grad(const T *x, const G *part, const Wide<T> *means, const Wide<T> *rstds, const G *dy, const T *w,
                      const T *more, T *dx, G *low, int n, int cols) {
  typedef Wide<T> A;
  constexpr int K = CHUNK<T>;
  int row = row_index();
  if (row >= n) return;
  i64 at = (i64)row * cols;
  x += at, dy += at, dx += at;
  if (part) part += at;
  if (more) more += at;
  bool in = aligned16(x), grad = aligned<G, K>(dy), out = aligned16(dx), weights = aligned16(w);
  int chunks = chunks_of(cols, K);
  A m = Centred ? means[row] : (A)0, s = rstds[row];
  f64 sum = 0, inner = 0;
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    A v[K], d[K], p[K];
    load_x(v, x, part, c, cols, in, (A)0);
    load_chunk(d, dy, c, cols, grad, (A)0);
    if (w) {
      load_chunk(p, w, c, cols, weights, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) d[i] *= p[i];
    }
#pragma unroll
    for (int i = 0; i < K; i++) {
      if (Centred) sum += (f64)d[i];
      inner += (f64)d[i] * (f64)(Centred ? (v[i] - m) * s : v[i] * s);
    }
  }
  inner = row_sum(inner);
  A a = Centred ? (A)(row_sum(sum) / cols) : (A)0;
  A b = Centred ? (A)(inner / cols) : (A)(inner / cols * (f64)s);
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    A v[K], d[K], p[K];
    load_x(v, x, part, c, cols, in, (A)0);
    load_chunk(d, dy, c, cols, grad, (A)0);
    if (w) {
      load_chunk(p, w, c, cols, weights, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) d[i] *= p[i];
    }
#pragma unroll
    for (int i = 0; i < K; i++) v[i] = s * (Centred ? d[i] - a - (v[i] - m) * s * b : d[i] - v[i] * b);
    if (more) add_chunk(v, more, c, cols);
    store_chunk(dx, c, cols, out, v);
    store_rounded<T>(low, at, c, cols, v);
  }
}

// The rows of a block of rows, and the threads over columns and over rows that add them up. A thread adds GROUP rows in
// the type of the dtype, and what the threads over rows have is added in float64, in order.
constexpr int BLOCK_ROWS = 64, ACROSS = 32, DOWN = 8, GROUP = BLOCK_ROWS / DOWN;

// norm_parts sets the sums over a block of rows, blockIdx.x, of dy·(x−mean)·rstd and, unless bias is null, of dy, for
// ACROSS chunks of columns.
template <typename T, typename G, bool Centred>
DEVICE void norm_parts(const T *x, const G *part, const Wide<T> *means, const Wide<T> *rstds, const G *dy, f64 *weight,
                       f64 *bias, int n, int cols) {
  typedef Wide<T> A;
  constexpr int K = CHUNK<T>;
  __shared__ A sums[2][DOWN][K][ACROSS];
  int tile = blockIdx.y * ACROSS, c = tile + threadIdx.x;
  A dw[K], db[K];
#pragma unroll
  for (int i = 0; i < K; i++) dw[i] = db[i] = 0;
  int first = blockIdx.x * BLOCK_ROWS + threadIdx.y * GROUP;
  if (c < chunks_of(cols, K)) {
    for (int r = first; r < min(first + GROUP, n); r++) {
      const T *xs = x + (i64)r * cols;
      const G *dys = dy + (i64)r * cols;
      A v[K], d[K], m = Centred ? means[r] : (A)0, s = rstds[r];
      load_x(v, xs, part ? part + (i64)r * cols : nullptr, c, cols, aligned16(xs), (A)0);
      load_chunk(d, dys, c, cols, aligned<G, K>(dys), (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) {
        dw[i] += d[i] * (Centred ? (v[i] - m) * s : v[i] * s);
        db[i] += d[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < K; i++) {
    sums[0][threadIdx.y][i][threadIdx.x] = dw[i];
    sums[1][threadIdx.y][i][threadIdx.x] = db[i];
  }
  __syncthreads();
  int thread = threadIdx.y * ACROSS + threadIdx.x;
  for (int i = thread; i < 2 * ACROSS * K; i += ACROSS * DOWN) {
    int which = i / (ACROSS * K), at = i % (ACROSS * K), col = tile * K + at;
    f64 *to = which ? bias : weight;
    if (!to || col >= cols) continue;
    f64 sum = 0;
    for (int k = 0; k < DOWN; k++) sum += (f64)sums[which][k][at % K][at / K];
    to[(i64)blockIdx.x * cols + col] = sum;
  }
}

extern __shared__ __align__(16) char room[];

// norm_grad_parts is norm_grad and norm_parts in one, for all columns of a block of rows: a warp does GROUP rows. The
// sums of its rows lie in shared memory: element i of chunk c at i·chunks + c.
template <typename T, typename G, bool Centred>
DEVICE void norm_grad_parts(const T *x, const G *part, const Wide<T> *means, const Wide<T> *rstds, const G *dy,
                            const T *w, const T *more, T *dx, G *low, f64 *weight, f64 *bias, int n, int cols) {
  typedef Wide<T> A;
  constexpr int K = CHUNK<T>;
  int chunks = chunks_of(cols, K), size = chunks * K;
  A *dw = (A *)room + threadIdx.y * size, *db = dw + DOWN * size;
  for (int i = threadIdx.x; i < size; i += ACROSS) {
    dw[i] = 0;
    if (bias) db[i] = 0;
  }
  __syncwarp();
  bool weights = aligned16(w);
  int first = blockIdx.x * BLOCK_ROWS + threadIdx.y * GROUP;
  for (int r = first; r < min(first + GROUP, n); r++) {
    i64 at = (i64)r * cols;
    const T *xs = x + at;
    const G *dys = dy + at, *ps = part ? part + at : nullptr;
    bool in = aligned16(xs), grad = aligned<G, K>(dys), out = aligned16(dx + at);
    A m = Centred ? means[r] : (A)0, s = rstds[r];
    f64 sum = 0, inner = 0;
    for (int c = threadIdx.x; c < chunks; c += ACROSS) {
      A v[K], d[K], p[K];
      load_x(v, xs, ps, c, cols, in, (A)0);
      load_chunk(d, dys, c, cols, grad, (A)0);
      if (w) load_chunk(p, w, c, cols, weights, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) {
        A f = w ? d[i] * p[i] : d[i], u = Centred ? (v[i] - m) * s : v[i] * s;
        if (Centred) sum += (f64)f;
        inner += (f64)f * (f64)u;
        dw[i * chunks + c] += d[i] * u;
        if (bias) db[i * chunks + c] += d[i];
      }
    }
    inner = warp_sum(inner);
    A a = Centred ? (A)(warp_sum(sum) / cols) : (A)0;
    A b = Centred ? (A)(inner / cols) : (A)(inner / cols * (f64)s);
    for (int c = threadIdx.x; c < chunks; c += ACROSS) {
      A v[K], d[K], p[K];
      load_x(v, xs, ps, c, cols, in, (A)0);
      load_chunk(d, dys, c, cols, grad, (A)0);
      if (w) load_chunk(p, w, c, cols, weights, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) {
        A f = w ? d[i] * p[i] : d[i];
        v[i] = s * (Centred ? f - a - (v[i] - m) * s * b : f - v[i] * b);
      }
      if (more) add_chunk(v, more + at, c, cols);
      store_chunk(dx + at, c, cols, out, v);
      store_rounded<T>(low, at, c, cols, v);
    }
  }
  __syncthreads();
  int thread = threadIdx.y * ACROSS + threadIdx.x;
  for (int col = thread; col < cols; col += ACROSS * DOWN) {
    const A *from = (const A *)room + col % K * chunks + col / K;
    f64 sum = 0;
    for (int k = 0; k < DOWN; k++) sum += (f64)from[k * size];
    weight[(i64)blockIdx.x * cols + col] = sum;
    if (!bias) continue;
    sum = 0;
    for (int k = 0; k < DOWN; k++) sum += (f64)from[(DOWN + k) * size];
    bias[(i64)blockIdx.x * cols + col] = sum;
  }
}

// norm_param_sum adds up blocks of sums in order: those of weight, and with blockIdx.y = 1 those of bias. All threads of
// a block load what its first warp adds up.
template <typename T>
DEVICE void norm_param_sum(const f64 *weight, const f64 *bias, T *dweight, T *dbias, int blocks, int cols) {
  constexpr int AT_ONCE = 64;
  __shared__ f64 tile[AT_ONCE][ACROSS];
  const f64 *from = blockIdx.y ? bias : weight;
  T *to = blockIdx.y ? dbias : dweight;
  int col = blockIdx.x * ACROSS + threadIdx.x;
  f64 sum = 0;
  for (int first = 0; first < blocks; first += AT_ONCE) {
#pragma unroll
    for (int k = threadIdx.y; k < AT_ONCE; k += DOWN)
      tile[k][threadIdx.x] = first + k < blocks && col < cols ? from[(i64)(first + k) * cols + col] : 0;
    __syncthreads();
    if (threadIdx.y == 0) {
      int n = min(AT_ONCE, blocks - first);
      for (int k = 0; k < n; k++) sum += tile[k][threadIdx.x];
    }
    __syncthreads();
  }
  if (threadIdx.y == 0 && col < cols) to[col] = narrow<T>((Wide<T>)sum);
}

// Kernels of x, dx and parameters of T, and of y and dy of G. S is what tells them apart: T, and G if it is another.
#define NORMS(S, T, G)                                                                                                \
  KERNEL layer_norm_##S(const T *x, const G *part, const T *w, const T *b, G *y, Wide<T> *mean, Wide<T> *rstd, int n, \
                        int cols, f64 eps) {                                                                          \
    norm<T, G, true>(x, part, w, b, y, mean, rstd, n, cols, eps);                                                     \
  }                                                                                                                   \
  KERNEL rms_norm_##S(const T *x, const T *w, G *y, Wide<T> *rrms, int n, int cols, f64 eps) {                        \
    norm<T, G, false>(x, nullptr, w, nullptr, y, nullptr, rrms, n, cols, eps);                                        \
  }                                                                                                                   \
  KERNEL layer_norm_grad_##S(const T *x, const G *part, const Wide<T> *mean, const Wide<T> *rstd, const G *dy,        \
                             const T *w, const T *more, T *dx, G *low, int n, int cols) {                             \
    norm_grad<T, G, true>(x, part, mean, rstd, dy, w, more, dx, low, n, cols);                                        \
  }                                                                                                                   \
  KERNEL rms_norm_grad_##S(const T *x, const Wide<T> *rrms, const G *dy, const T *w, const T *more, T *dx, G *low,    \
                           int n, int cols) {                                                                         \
    norm_grad<T, G, false>(x, nullptr, nullptr, rrms, dy, w, more, dx, low, n, cols);                                 \
  }                                                                                                                   \
  KERNEL layer_norm_grad_parts_##S(const T *x, const G *part, const Wide<T> *mean, const Wide<T> *rstd, const G *dy,  \
                                   const T *w, const T *more, T *dx, G *low, f64 *weight, f64 *bias, int n,           \
                                   int cols) {                                                                        \
    norm_grad_parts<T, G, true>(x, part, mean, rstd, dy, w, more, dx, low, weight, bias, n, cols);                    \
  }                                                                                                                   \
  KERNEL rms_norm_grad_parts_##S(const T *x, const Wide<T> *rrms, const G *dy, const T *w, const T *more, T *dx,      \
                                 G *low, f64 *weight, int n, int cols) {                                              \
    norm_grad_parts<T, G, false>(x, nullptr, nullptr, rrms, dy, w, more, dx, low, weight, nullptr, n, cols);          \
  }                                                                                                                   \
  KERNEL layer_norm_parts_##S(const T *x, const G *part, const Wide<T> *mean, const Wide<T> *rstd, const G *dy,       \
                              f64 *weight, f64 *bias, int n, int cols) {                                              \
    norm_parts<T, G, true>(x, part, mean, rstd, dy, weight, bias, n, cols);                                           \
  }                                                                                                                   \
  KERNEL rms_norm_parts_##S(const T *x, const Wide<T> *rrms, const G *dy, f64 *weight, int n, int cols) {             \
    norm_parts<T, G, false>(x, nullptr, nullptr, rrms, dy, weight, nullptr, n, cols);                                 \
  }

#define SUMS(T)                                                                                                       \
  KERNEL norm_param_sum_##T(const f64 *weight, const f64 *bias, T *dweight, T *dbias, int blocks, int cols) {         \
    norm_param_sum<T>(weight, bias, dweight, dbias, blocks, cols);                                                    \
  }
