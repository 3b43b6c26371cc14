// SPDX-License-Identifier: Apache-2.0

// OpAttention and OpAttentionGrad for every dtype, any sizes of heads and any mask, on the ordinary units. The kernels
// for the matrix units are in flash.cu.
//
// A block has 16 × 16 threads and computes a tile of scores, TM × TN a thread. Results are computed 64 columns at a
// time: where heads are wider, further blocks compute the same scores for the next columns. All sums have one order,
// which depends on the shape alone.
#include "attention.cuh"

const int side = 16;          // threads of a block in a row, and in a column
const int columns = 64;       // of results that a block computes
const int perThread = 4;      // of them
const int depth = 32;         // elements of q and k, or rows of a second product, that are in shared memory at a time

DEVICE f32 exponential(f32 x) { return expf(x); }
DEVICE f64 exponential(f64 x) { return exp(x); }
DEVICE f32 multiplyAdd(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
DEVICE f64 multiplyAdd(f64 a, f64 b, f64 c) { return fma(a, b, c); }
DEVICE f32 larger(f32 a, f32 b) { return fmaxf(a, b); }
DEVICE f64 larger(f64 a, f64 b) { return fmax(a, b); }

template <class T> struct Infinity;
template <> struct Infinity<f32> {
  DEVICE f32 get() { return __uint_as_float(0x7f800000u); }
};
template <> struct Infinity<f64> {
  DEVICE f64 get() { return __longlong_as_double(0x7ff0000000000000ll); }
};
template <class T> DEVICE T infinity() { return Infinity<T>::get(); }

// take loads N numbers that lie together.
template <int N, class A> __device__ __forceinline__ void take(A (&dst)[N], const A *src) {
#pragma unroll
  for (int c = 0; c < N; c++) dst[c] = src[c];
}
template <> __device__ __forceinline__ void take<4, f32>(f32 (&dst)[4], const f32 *src) {
  float4 x = *(const float4 *)src;
  dst[0] = x.x, dst[1] = x.y, dst[2] = x.z, dst[3] = x.w;
}
template <> __device__ __forceinline__ void take<2, f64>(f64 (&dst)[2], const f64 *src) {
  double2 x = *(const double2 *)src;
  dst[0] = x.x, dst[1] = x.y;
}
template <> __device__ __forceinline__ void take<4, f64>(f64 (&dst)[4], const f64 *src) {
  double2 x = *(const double2 *)src, y = *(const double2 *)(src + 2);
  dst[0] = x.x, dst[1] = x.y, dst[2] = y.x, dst[3] = y.y;
}

template <class T, int TM, int TN> struct Tile {
  typedef Wide<T> A;
  static const int rows = side * TM, keys = side * TN, pad = 16 / sizeof(A);

  union alignas(16) Operands {
    struct {
      A x[depth][rows + pad]; // queries, transposed
      A y[depth][keys + pad]; // keys, transposed
    } products;
    A z[depth][columns + pad]; // rows of the second operand of a second product
  };
  struct alignas(16) Shared {
    Operands in;
    A p[rows][keys + pad]; // probabilities, or gradients of scores
  };

  // copy loads what the thread has to of N rows of x, of which n exist.
  template <int N> DEVICE void copy(A *dst, const T *x, i64 stride, int n) {
    const int pass = side * side / depth;
    int row = threadIdx.x / depth;
    x += row * stride;
#pragma unroll
    for (int k = 0; k < N; k += pass, x += pass * stride) dst[row + k] = row + k < n ? widen(*x) : 0;
  }

  // products computes x·y of nx rows x and ny rows y of d elements.
  DEVICE void products(Shared &sh, A (&s)[TM][TN], const T *x, i64 xs, int nx,
                          const T *y, i64 ys, int ny, int d) {
    int tid = threadIdx.x, tx = tid % side, ty = tid / side;
#pragma unroll
    for (int r = 0; r < TM; r++)
#pragma unroll
      for (int c = 0; c < TN; c++) s[r][c] = 0;
    for (int e0 = 0; e0 < d; e0 += depth) {
      int n = lesser(depth, d - e0), e = tid % depth;
      __syncthreads();
      if (e < n) {
        copy<rows>(sh.in.products.x[e], x + e0 + e, xs, nx);
        copy<keys>(sh.in.products.y[e], y + e0 + e, ys, ny);
      }
      __syncthreads();
      if (ty * TM < nx) {
#pragma unroll 4
        for (int k = 0; k < n; k++) {
          A u[TM], w[TN];
          take<TM>(u, &sh.in.products.x[k][ty * TM]);
          take<TN>(w, &sh.in.products.y[k][tx * TN]);
#pragma unroll
          for (int r = 0; r < TM; r++)
#pragma unroll
            for (int c = 0; c < TN; c++) s[r][c] = multiplyAdd(u[r], w[c], s[r][c]);
        }
      }
    }
  }

  // scores makes scores of products, −∞ where the query does not see the key.
  DEVICE void scores(const AttentionArgs &a, A (&s)[TM][TN], int b, int h, int i0, int j0) {
    int i = i0 + threadIdx.x / side * TM, j = j0 + threadIdx.x % side * TN;
#pragma unroll
    for (int r = 0; r < TM; r++)
#pragma unroll
      for (int c = 0; c < TN; c++) {
        A x = s[r][c] * (A)a.scale;
        s[r][c] = i + r < a.tq && visible(a, i + r, j + c) ? x : -infinity<A>();
      }
    if (a.maskKind == 0) return;
    i64 at = b * a.ms[0] + h * a.ms[1] + i * a.ms[2] + j * a.ms[3];
#pragma unroll
    for (int r = 0; r < TM; r++, at += a.ms[2] - TN * a.ms[3])
#pragma unroll
      for (int c = 0; c < TN; c++, at += a.ms[3]) {
        if (i + r >= a.tq || j + c >= a.tk) continue;
        if (a.maskKind == 2)
          s[r][c] += widen(((const T *)a.mask)[at]);
        else if (((const u8 *)a.mask)[at] == 0)
          s[r][c] = -infinity<A>();
      }
  }

  // kept is dropout's mask of the thread's elements, one bit each, rows first.
  DEVICE u32 kept(const AttentionArgs &a, int b, int h, int i0, int j0) {
    if (a.threshold == 0) return 0xffffffffu;
    int tx = threadIdx.x % side, ty = threadIdx.x / side;
    u32 bits = 0;
    uint4 w = make_uint4(0, 0, 0, 0);
    u64 e = 0;
#pragma unroll 1
    for (int x = 0; x < TM * TN; x++, e++) {
      if (x % TN == 0) e = elementOf(a, h, i0 + ty * TM + x / TN) + (u32)(j0 + tx * TN);
      if (x % TN == 0 || e % 4 == 0) w = philox(a.key, a.position + b, e / 4);
      if (word(w, (u32)e) >> 8 >= a.threshold) bits |= 1u << x;
    }
    return bits;
  }

  // busy reports whether one of a warp's rows exists, of n of the tile.
  DEVICE bool busy(int n) { return threadIdx.x / 32 * (32 / side) * TM < n; }

  // put stores the thread's part of a tile of n rows, once nobody reads the last one.
  DEVICE void put(Shared &sh, const A (&s)[TM][TN], int n) {
    __syncthreads();
    if (!busy(n)) return;
    int tx = threadIdx.x % side, ty = threadIdx.x / side;
#pragma unroll
    for (int r = 0; r < TM; r++)
#pragma unroll
      for (int c = 0; c < TN; c++) sh.p[ty * TM + r][tx * TN + c] = s[r][c];
  }

  // fetch loads columns from c0 on, up to width, of n rows of z.
  DEVICE void fetch(Shared &sh, const T *z, i64 zs, int n, int c0, int width) {
    __syncthreads();
    const int pass = side * side / columns;
    int row = threadIdx.x / columns, col = threadIdx.x % columns;
    if (c0 + col >= width) n = 0;
    z += row * zs + c0 + col;
#pragma unroll
    for (int k = 0; k < depth; k += pass, z += pass * zs) sh.in.z[row + k][col] = row + k < n ? widen(*z) : 0;
    __syncthreads();
  }

  // multiply adds p·z of the n rows of z.
  DEVICE void multiply(Shared &sh, A (&acc)[TM][perThread], const T *z, i64 zs, int n,
                          int nx, int c0, int width) {
    int tx = threadIdx.x % side, ty = threadIdx.x / side;
    for (int k0 = 0; k0 < n; k0 += depth) {
      int most = lesser(depth, n - k0);
      fetch(sh, z + k0 * zs, zs, most, c0, width);
      if (ty * TM >= nx) continue;
#pragma unroll 4
      for (int k = 0; k < most; k++) {
        A w[perThread];
        take<perThread>(w, &sh.in.z[k][tx * perThread]);
#pragma unroll
        for (int r = 0; r < TM; r++) {
          A u = sh.p[ty * TM + r][k0 + k];
#pragma unroll
          for (int c = 0; c < perThread; c++) acc[r][c] = multiplyAdd(u, w[c], acc[r][c]);
        }
      }
    }
  }

  // multiplyTransposed adds pᵀ·z of the n rows of z, for ny columns of p.
  DEVICE void multiplyTransposed(Shared &sh, A (&acc)[TN][perThread], const T *z,
                               i64 zs, int n, int ny, int c0, int width) {
    int tx = threadIdx.x % side, ty = threadIdx.x / side;
    for (int k0 = 0; k0 < n; k0 += depth) {
      int most = lesser(depth, n - k0);
      fetch(sh, z + k0 * zs, zs, most, c0, width);
      if (ty * TN >= ny) continue;
#pragma unroll 4
      for (int k = 0; k < most; k++) {
        A u[TN], w[perThread];
        take<TN>(u, &sh.p[k0 + k][ty * TN]);
        take<perThread>(w, &sh.in.z[k][tx * perThread]);
#pragma unroll
        for (int r = 0; r < TN; r++)
#pragma unroll
          for (int c = 0; c < perThread; c++) acc[r][c] = multiplyAdd(u[r], w[c], acc[r][c]);
      }
    }
  }
};

// store writes a block's results: N rows a thread, of the n rows that there are.
template <class T, int N, class A>
DEVICE void store(const A (&acc)[N][perThread], T *out, i64 stride, int n, int c0, int width) {
  int row = threadIdx.x / side * N, col = c0 + threadIdx.x % side * perThread;
  out += row * stride + col;
#pragma unroll
  for (int r = 0; r < N; r++, out += stride)
#pragma unroll
    for (int c = 0; c < perThread; c++)
      if (row + r < n && col + c < width) out[c] = narrow<T>(acc[r][c]);
}

template <int N, class A> DEVICE void clear(A (&acc)[N][perThread]) {
#pragma unroll
  for (int r = 0; r < N; r++)
#pragma unroll
    for (int c = 0; c < perThread; c++) acc[r][c] = 0;
}

DEVICE int tilesOf(int n, int tile) { return (n + tile - 1) / tile; }

// forward: blocks are [batch, head, tile of queries, chunk of columns].
template <class T, int TM, int TN> DEVICE void forward(const AttentionArgs &a) {
  typedef Tile<T, TM, TN> Tl;
  typedef typename Tl::A A;
  typedef Sum<T> S;
  __shared__ typename Tl::Shared sh;
  int chunks = greater(1, tilesOf(a.dvalue, columns)), tiles = tilesOf(a.tq, Tl::rows);
  u32 at = blockIdx.x;
  int c0 = at % chunks * columns, i0 = at / chunks % tiles * Tl::rows;
  at = at / chunks / tiles;
  int h = at % a.heads, b = at / a.heads, kv = h / (a.heads / a.kvHeads);
  int tx = threadIdx.x % side, ty = threadIdx.x / side, rows = lesser(Tl::rows, a.tq - i0);

  const T *q = (const T *)a.q + b * a.qs[0] + h * a.qs[1] + i0 * a.qs[2];
  const T *k = (const T *)a.k + b * a.ks[0] + kv * a.ks[1];
  const T *v = (const T *)a.v + b * a.vs[0] + kv * a.vs[1];
  A acc[TM][perThread], most[TM];
  S sum[TM];
  clear(acc);
#pragma unroll
  for (int r = 0; r < TM; r++) most[r] = -infinity<A>(), sum[r] = 0;

  int end = endKey(a, i0 + rows);
  for (int j0 = firstKey(a, i0) / Tl::keys * Tl::keys; j0 < end; j0 += Tl::keys) {
    int n = lesser(Tl::keys, a.tk - j0);
    A s[TM][TN];
    Tl::products(sh, s, q, a.qs[2], rows, k + j0 * a.ks[2], a.ks[2], n, a.d);
    if (Tl::busy(rows)) {
      Tl::scores(a, s, b, h, i0, j0);
      u32 keep = Tl::kept(a, b, h, i0, j0);
#pragma unroll
      for (int r = 0; r < TM; r++) {
        A top = s[r][0];
#pragma unroll
        for (int c = 1; c < TN; c++) top = larger(top, s[r][c]);
#pragma unroll
        for (int lane = side / 2; lane > 0; lane /= 2) top = larger(top, __shfl_xor_sync(0xffffffffu, top, lane));
        top = larger(top, most[r]);
        A shift = top == -infinity<A>() ? 0 : top, factor = exponential(most[r] - shift), partial = 0;
        most[r] = top;
#pragma unroll
        for (int c = 0; c < TN; c++) {
          A p = exponential(s[r][c] - shift);
          partial += p;
          s[r][c] = keep >> (r * TN + c) & 1 ? p : 0;
        }
        sum[r] = sum[r] * factor + partial;
#pragma unroll
        for (int c = 0; c < perThread; c++) acc[r][c] *= factor;
      }
    }
    Tl::put(sh, s, rows);
    Tl::multiply(sh, acc, v + j0 * a.vs[2], a.vs[2], n, rows, c0, a.dvalue);
  }
#pragma unroll
  for (int r = 0; r < TM; r++) {
#pragma unroll
    for (int lane = side / 2; lane > 0; lane /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], lane);
    A factor = sum[r] == 0 ? 0 : (A)(1 / sum[r]);
    if (a.threshold != 0) factor *= (A)a.keepScale;
#pragma unroll
    for (int c = 0; c < perThread; c++) acc[r][c] *= factor;
    int i = ty * TM + r;
    if (tx == 0 && c0 == 0 && i < rows)
      ((A *)a.lse)[((i64)b * a.heads + h) * a.tq + i0 + i] = (A)((S)most[r] + log(sum[r]));
  }
  store<T>(acc, (T *)a.out + b * a.os[0] + h * a.os[1] + i0 * a.os[2], a.os[2], rows, c0, a.dvalue);
}

// probabilities computes of a tile the probabilities behind dropout in s, and in g the gradients of the scores, not
// multiplied by the scale.
template <class T, int TM, int TN>
DEVICE void probabilities(const AttentionArgs &a, typename Tile<T, TM, TN>::Shared &sh,
                       Wide<T> (&s)[TM][TN],
                       Wide<T> (&g)[TM][TN], int b, int h, int i0, int rows,
                       int j0, int n) {
  typedef Tile<T, TM, TN> Tl;
  typedef typename Tl::A A;
  int kv = h / (a.heads / a.kvHeads), ty = threadIdx.x / side;
  const T *q = (const T *)a.q + b * a.qs[0] + h * a.qs[1] + i0 * a.qs[2];
  const T *k = (const T *)a.k + b * a.ks[0] + kv * a.ks[1] + j0 * a.ks[2];
  const T *v = (const T *)a.v + b * a.vs[0] + kv * a.vs[1] + j0 * a.vs[2];
  const T *dout = (const T *)a.dout + b * a.dos[0] + h * a.dos[1] + i0 * a.dos[2];
  Tl::products(sh, s, q, a.qs[2], rows, k, a.ks[2], n, a.d);
  Tl::products(sh, g, dout, a.dos[2], rows, v, a.vs[2], n, a.dvalue);
  if (!Tl::busy(rows)) return;
  Tl::scores(a, s, b, h, i0, j0);
  u32 keep = Tl::kept(a, b, h, i0, j0);
  A scale = a.threshold == 0 ? 1 : (A)a.keepScale;
  i64 first = ((i64)b * a.heads + h) * a.tq + i0;
#pragma unroll
  for (int r = 0; r < TM; r++) {
    int i = ty * TM + r;
    A lse = i < rows ? ((const A *)a.lse)[first + i] : -infinity<A>();
    A shift = lse == -infinity<A>() ? infinity<A>() : lse; // no key is seen
    A drop = i < rows ? ((const A *)a.delta)[first + i] : 0;
#pragma unroll
    for (int c = 0; c < TN; c++) {
      A z = keep >> (r * TN + c) & 1 ? scale : 0;
      A p = exponential(s[r][c] - shift);
      g[r][c] = p * (g[r][c] * z - drop);
      s[r][c] = p * z;
    }
  }
}

// gradQuery: blocks are [batch, head, tile of queries, chunk of columns of dq]. The first chunk's write the gradient of
// the bias.
template <class T, int TM, int TN> DEVICE void gradQuery(const AttentionArgs &a) {
  typedef Tile<T, TM, TN> Tl;
  typedef typename Tl::A A;
  __shared__ typename Tl::Shared sh;
  int chunks = greater(1, tilesOf(a.d, columns)), tiles = tilesOf(a.tq, Tl::rows);
  u32 at = blockIdx.x;
  int c0 = at % chunks * columns, i0 = at / chunks % tiles * Tl::rows;
  at = at / chunks / tiles;
  int h = at % a.heads, b = at / a.heads, kv = h / (a.heads / a.kvHeads);
  int tx = threadIdx.x % side, ty = threadIdx.x / side, rows = lesser(Tl::rows, a.tq - i0);
  const T *k = (const T *)a.k + b * a.ks[0] + kv * a.ks[1];
  bool bias = a.dbias != nullptr && c0 == 0;

  A acc[TM][perThread];
  clear(acc);
  int first = bias ? 0 : firstKey(a, i0), end = bias ? a.tk : endKey(a, i0 + rows);
  for (int j0 = first / Tl::keys * Tl::keys; j0 < end; j0 += Tl::keys) {
    int n = lesser(Tl::keys, a.tk - j0);
    A s[TM][TN], g[TM][TN];
    probabilities<T, TM, TN>(a, sh, s, g, b, h, i0, rows, j0, n);
#pragma unroll
    for (int r = 0; r < TM; r++)
#pragma unroll
      for (int c = 0; c < TN; c++) {
        int i = ty * TM + r, j = tx * TN + c;
        if (bias && i < rows && j < n)
          ((T *)a.dbias)[(((i64)b * a.heads + h) * a.tq + i0 + i) * a.tk + j0 + j] = narrow<T>(g[r][c]);
        g[r][c] *= (A)a.scale;
      }
    Tl::put(sh, g, rows);
    Tl::multiply(sh, acc, k + j0 * a.ks[2], a.ks[2], n, rows, c0, a.d);
  }
  store<T>(acc, (T *)a.dq + b * a.dqs[0] + h * a.dqs[1] + i0 * a.dqs[2], a.dqs[2], rows, c0, a.d);
}

// gradKey: blocks are [batch, key head, tile of keys, chunk of columns of dk and dv]. Heads of the group and tiles of
// queries are added in order.
template <class T, int TM, int TN> DEVICE void gradKey(const AttentionArgs &a) {
  typedef Tile<T, TM, TN> Tl;
  typedef typename Tl::A A;
  __shared__ typename Tl::Shared sh;
  int chunks = greater(1, tilesOf(greater(a.d, a.dvalue), columns)), tiles = tilesOf(a.tk, Tl::keys);
  u32 at = blockIdx.x;
  int c0 = at % chunks * columns, j0 = at / chunks % tiles * Tl::keys;
  at = at / chunks / tiles;
  int kv = at % a.kvHeads, b = at / a.kvHeads, n = lesser(Tl::keys, a.tk - j0), group = a.heads / a.kvHeads;

  A dk[TN][perThread], dv[TN][perThread];
  clear(dk);
  clear(dv);
  for (int h = kv * group; h < (kv + 1) * group; h++) {
    const T *q = (const T *)a.q + b * a.qs[0] + h * a.qs[1];
    const T *dout = (const T *)a.dout + b * a.dos[0] + h * a.dos[1];
    int end = endQuery(a, j0 + n);
    for (int i0 = firstQuery(a, j0) / Tl::rows * Tl::rows; i0 < end; i0 += Tl::rows) {
      int rows = lesser(Tl::rows, a.tq - i0);
      A s[TM][TN], g[TM][TN];
      probabilities<T, TM, TN>(a, sh, s, g, b, h, i0, rows, j0, n);
      if (c0 < a.dvalue) {
        Tl::put(sh, s, rows);
        Tl::multiplyTransposed(sh, dv, dout + i0 * a.dos[2], a.dos[2], rows, n, c0, a.dvalue);
      }
      if (c0 < a.d) {
#pragma unroll
        for (int r = 0; r < TM; r++)
#pragma unroll
          for (int c = 0; c < TN; c++) g[r][c] *= (A)a.scale;
        Tl::put(sh, g, rows);
        Tl::multiplyTransposed(sh, dk, q + i0 * a.qs[2], a.qs[2], rows, n, c0, a.d);
      }
    }
  }
  store<T>(dk, (T *)a.dk + b * a.dks[0] + kv * a.dks[1] + j0 * a.dks[2], a.dks[2], n, c0, a.d);
  store<T>(dv, (T *)a.dv + b * a.dvs[0] + kv * a.dvs[1] + j0 * a.dvs[2], a.dvs[2], n, c0, a.dvalue);
}

#define KERNELS(suffix, T, M, N)                                                                                       \
  extern "C" __global__ void __launch_bounds__(256, 1) attention_##suffix(AttentionArgs a) { forward<T, M, N>(a); }     \
  extern "C" __global__ void __launch_bounds__(256, 1) attention_few_##suffix(AttentionArgs a) { forward<T, 1, N>(a); } \
  extern "C" __global__ void __launch_bounds__(256, 1) attention_dq_##suffix(AttentionArgs a) { gradQuery<T, M, N>(a); } \
  extern "C" __global__ void __launch_bounds__(256, 1) attention_dkdv_##suffix(AttentionArgs a) { gradKey<T, M, N>(a); }

KERNELS(f32, f32, 4, 4)
KERNELS(f64, f64, 2, 2)
KERNELS(bf16, bf16, 4, 4)
KERNELS(f16, f16, 4, 4)
