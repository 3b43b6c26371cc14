// SPDX-License-Identifier: Apache-2.0

// OpAttention and OpAttentionGrad of bfloat16 and float16 on the matrix units, after Dao, "FlashAttention-2" (2023).
//
// Heads have up to D = 64 or 128 elements, of which there are a multiple of 8; rows are aligned to 16 bytes; the scale
// is positive; a mask is of bools. attention.cu has the rest. Products are summed in float32 and in one
// order, which depends on the shape alone: the gradients of keys are computed by tiles of keys, those of queries by tiles
// of queries, in two kernels, so that nothing is added by two blocks.
//
// A block has four warps. What stays (queries in the forward pass and for their gradient, else keys and values) has 16
// or 32 rows a warp; what passes by comes in tiles, one of which is copied while the one before is computed with.
// Scores, probabilities and their gradients never leave registers. A warp leaves out tiles that its rows do not see.
#include "attention.cuh"
#include "mma.cuh"

const int warps = 4, threads = 32 * warps;
const f32 log2e = 1.4426950408889634f, ln2 = 0.6931471805599453f;

// Rows are matrices of D numbers of 16 bits a row in shared memory. Pieces of 16 bytes lie where no two of eight rows
// that a load of matrices takes are in the same banks.
template <int D> struct Rows {
  static const int bytes = 2 * D;

  DEVICE u32 at(u32 base, int row, int piece) { return base + row * bytes + ((piece ^ (row & 7)) << 4); }

  // fetch starts to copy N rows, of which n exist with width elements each.
  template <int N, class T> DEVICE void fetch(u32 base, const T *x, i64 stride, int n, int width) {
    const int pieces = D / 8, pass = threads / pieces; // rows that all threads copy at once, a multiple of 8
    int row = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    base = at(base, row, piece);
    if (piece * 8 >= width) n = 0;
    x += row * stride + piece * 8;
#pragma unroll
    for (int k = 0; k < N; k += pass, x += pass * stride) copy16(base + k * bytes, x, row + k < n);
  }

  // left is the left side of products: 16 rows from row on, 16 columns from 16·k on.
  DEVICE void left(u32 (&a)[4], u32 base, int row, int k) {
    int lane = threadIdx.x % 32;
    matrices(a, at(base, row + lane % 16, 2 * k + lane / 16));
  }
  // right is the right side x·yᵀ of 16 rows of y from row on (two times two numbers), and 16 columns from 16·k on.
  DEVICE void right(u32 (&b)[4], u32 base, int row, int k) {
    int lane = threadIdx.x % 32;
    matrices(b, at(base, row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
  }
  // across is the right side p·y of 16 rows of y from row on, and 16 columns from 16·k on.
  DEVICE void across(u32 (&b)[4], u32 base, int row, int k) {
    int lane = threadIdx.x % 32;
    matricesTransposed(b, at(base, row + lane % 16, 2 * k + lane / 16));
  }

  // put stores a warp's 16 rows of results through its rows of shared memory from row on, which nobody else uses.
  template <class T>
  DEVICE void put(char *shared, u32 base, int row, const f32 (&acc)[D / 8][4], f32 upper, f32 lower, T *out, i64 stride,
                  int n, int width) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < D / 8; k++) {
      *(u32 *)(shared + at(base, row + g, k) + 4 * t) = Unit<T>::pack(acc[k][0] * upper, acc[k][1] * upper);
      *(u32 *)(shared + at(base, row + g + 8, k) + 4 * t) = Unit<T>::pack(acc[k][2] * lower, acc[k][3] * lower);
    }
    __syncwarp();
    const int pieces = D / 8;
#pragma unroll
    for (int k = 0; k < 16 * pieces / 32; k++) {
      int r = (lane + 32 * k) / pieces, piece = (lane + 32 * k) % pieces;
      if (row + r < n && piece * 8 < width)
        *(uint4 *)(out + (row + r) * stride + piece * 8) = *(const uint4 *)(shared + at(base, row + r, piece));
    }
  }
};

// products computes s = x·yᵀ: 16·MT rows of x, in registers, or in shared memory from row on; 8·NT rows of y.
template <class T, int D, int MT, int NT, bool HELD>
DEVICE void products(f32 (&s)[MT][NT][4], const u32 (&held)[HELD ? MT : 1][HELD ? D / 16 : 1][4], u32 x, int row, u32 y) {
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < NT; n++) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
  for (int k = 0; k < D / 16; k++) {
    u32 a[MT][4];
#pragma unroll
    for (int m = 0; m < MT; m++) {
      if (!HELD) Rows<D>::left(a[m], x, row + 16 * m, k);
#pragma unroll
      for (int e = 0; HELD && e < 4; e++) a[m][e] = held[HELD ? m : 0][HELD ? k : 0][e];
    }
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      u32 b[4];
      Rows<D>::right(b, y, 8 * n, k);
#pragma unroll
      for (int m = 0; m < MT; m++) {
        Unit<T>::multiply(s[m][n], a[m], b[0], b[1]);
        Unit<T>::multiply(s[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// add computes acc += p·y: p as products leaves it, rounded; 8·NT rows of y.
template <class T, int D, int MT, int NT>
DEVICE void add(f32 (&acc)[MT][D / 8][4], const f32 (&p)[MT][NT][4], u32 y) {
#pragma unroll
  for (int n = 0; n < NT; n += 2) {
    u32 a[MT][4];
#pragma unroll
    for (int m = 0; m < MT; m++) {
      a[m][0] = Unit<T>::pack(p[m][n][0], p[m][n][1]);
      a[m][1] = Unit<T>::pack(p[m][n][2], p[m][n][3]);
      a[m][2] = Unit<T>::pack(p[m][n + 1][0], p[m][n + 1][1]);
      a[m][3] = Unit<T>::pack(p[m][n + 1][2], p[m][n + 1][3]);
    }
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      u32 b[4];
      Rows<D>::across(b, y, 8 * n, k);
#pragma unroll
      for (int m = 0; m < MT; m++) {
        Unit<T>::multiply(acc[m][2 * k], a[m], b[0], b[1]);
        Unit<T>::multiply(acc[m][2 * k + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <int MT, int N> DEVICE void clear(f32 (&acc)[MT][N][4]) {
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int n = 0; n < N; n++) acc[m][n][0] = acc[m][n][1] = acc[m][n][2] = acc[m][n][3] = 0;
}

// kept is dropout's mask of a warp's 16 × 8·NT elements: bit 4·n+e is number e of the n-th product. TURNED: rows are keys
// and columns queries. i and j are the warp's first query and key, j a multiple of 8.
//
// A block of random bits is for four keys. Where the blocks of a row begin with its first key, each lane draws one block
// for every four elements that it has, and lanes tell each other; else each draws all of its own.
template <int NT, bool TURNED> DEVICE u32 kept(const AttentionArgs &a, int b, int h, int i, int j) {
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u64 position = a.position + b;
  u32 bits = 0;
  if (a.tk % 4 != 0) {
#pragma unroll 1
    for (int x = 0; x < 4 * NT; x++) {
      int row = g + x % 4 / 2 * 8, col = x / 4 * 8 + 2 * t + x % 2;
      u64 e = elementOf(a, h, i + (TURNED ? col : row)) + (u32)(j + (TURNED ? row : col));
      if (uint32_at(a.key, position, e) >> 8 >= a.threshold) bits |= 1u << x;
    }
    return bits;
  }
  // The lane draws for query i of its share, and the keys from j on.
  int share = TURNED ? g % 4 : t;
  u64 block;
  if (TURNED) {
    i += 2 * t + share % 2;
    j += g / 4 * 4 + share / 2 * 8;
  } else {
    i += g + share / 2 * 8;
    j += share % 2 * 4;
  }
  block = (elementOf(a, h, i) + (u32)j) / 4;
  u64 step = TURNED ? 2ull * (u32)a.tk : 2;
#pragma unroll 1
  for (int n = 0; n < NT; n += 2) {
    u32 x = 0;
#pragma unroll
    for (int k = 0; k < 2; k++, block += step) {
      uint4 w = philox(a.key, position, block);
      u32 four = (w.x >> 8 >= a.threshold) | (w.y >> 8 >= a.threshold) << 1 | (w.z >> 8 >= a.threshold) << 2 |
                 (w.w >> 8 >= a.threshold) << 3;
      x |= four << (16 * k + 4 * share);
    }
    x |= __shfl_xor_sync(0xffffffffu, x, TURNED ? 4 : 1);
    x |= __shfl_xor_sync(0xffffffffu, x, TURNED ? 8 : 2);
    if (TURNED) { // bit 4·e+share of each half
      x = x >> share & 0x11111111u;
      x = (x | x >> 3 | x >> 6 | x >> 9) & 0x000f000fu;
    } else { // bits 0 and 1 of four from 4·(t/2) + t%2·2 on, and of those from 8 on
      x = x >> (t / 2 * 4 + t % 2 * 2) & 0x03030303u;
      x = (x | x >> 6) & 0x000f000fu;
    }
    bits |= (x & 0xf | x >> 12) << (4 * n);
  }
  return bits;
}

// seen is which of a warp's 16 × 8·NT elements are of keys that the query sees, as kept counts them.
template <int NT, bool TURNED> DEVICE u32 seen(const AttentionArgs &a, int b, int h, int i0, int j0) {
  int i1 = i0 + (TURNED ? 8 * NT : 16) - 1, j1 = j0 + (TURNED ? 16 : 8 * NT) - 1; // the last
  bool whole = j1 < a.tk && j0 >= i1 + a.lower && j1 < i0 + a.upper;
  if (whole && a.maskKind == 0) return 0xffffffffu;
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const u8 *mask = (const u8 *)a.mask + b * a.ms[0] + h * a.ms[1];
  u32 bits = 0;
#pragma unroll 4
  for (int x = 0; x < 4 * NT; x++) {
    int row = g + x % 4 / 2 * 8, col = x / 4 * 8 + 2 * t + x % 2;
    int i = i0 + (TURNED ? col : row), j = j0 + (TURNED ? row : col);
    bool yes = visible(a, i, j);
    if (a.maskKind != 0) yes = yes && i < a.tq && mask[i * a.ms[2] + j * a.ms[3]] != 0;
    bits |= (yes ? 1u : 0u) << x;
  }
  return bits;
}

// hide makes products of what is not seen −∞.
template <int MT, int NT> DEVICE void hide(f32 (&s)[MT][NT][4], const u32 (&bits)[MT]) {
#pragma unroll
  for (int m = 0; m < MT; m++) {
    if (bits[m] == 0xffffffffu) continue;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (!(bits[m] & 1u << (4 * n + e))) s[m][n][e] = -__uint_as_float(0x7f800000u);
  }
}

extern __shared__ __align__(128) char shared[];

// forward: blocks are [batch, head, tile of queries], the last tiles, which see most, first. Shared memory holds queries,
// and two tiles of keys and values.
template <class T, int D, int MT, int NT, bool HELD> DEVICE void forward(const AttentionArgs &a) {
  const int queries = 16 * MT * warps, keys = 8 * NT, stage = 2 * keys * Rows<D>::bytes;
  const f32 inf = __uint_as_float(0x7f800000u);
  int tiles = (a.tq + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries;
  int h = blockIdx.x / tiles % a.heads, b = blockIdx.x / tiles / a.heads, kv = h / (a.heads / a.kvHeads);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int rows = lesser(queries, a.tq - i0), own = 16 * MT * warp;
  const T *k = (const T *)a.k + b * a.ks[0] + kv * a.ks[1], *v = (const T *)a.v + b * a.vs[0] + kv * a.vs[1];
  u32 base = sharedAddress(shared), tile = base + queries * Rows<D>::bytes;
  f32 factor = (f32)a.scale * log2e;

  int first = firstKey(a, i0) / keys * keys, end = endKey(a, i0 + rows);
  if (first < end) {
    Rows<D>::template fetch<queries>(base, (const T *)a.q + b * a.qs[0] + h * a.qs[1] + i0 * a.qs[2], a.qs[2], rows, a.d);
    Rows<D>::template fetch<keys>(tile, k + first * a.ks[2], a.ks[2], a.tk - first, a.d);
    Rows<D>::template fetch<keys>(tile + stage / 2, v + first * a.vs[2], a.vs[2], a.tk - first, a.dvalue);
    commit();
  }
  f32 acc[MT][D / 8][4], most[MT][2], sum[MT][2];
  u32 held[HELD ? MT : 1][HELD ? D / 16 : 1][4];
  clear(acc);
#pragma unroll
  for (int m = 0; m < MT; m++) most[m][0] = most[m][1] = -inf, sum[m][0] = sum[m][1] = 0;

  for (int j0 = first, odd = 0; j0 < end; j0 += keys, odd ^= 1) {
    int next = j0 + keys;
    u32 now = tile + odd * stage, later = tile + (odd ^ 1) * stage;
    if (next < end) {
      Rows<D>::template fetch<keys>(later, k + next * a.ks[2], a.ks[2], a.tk - next, a.d);
      Rows<D>::template fetch<keys>(later + stage / 2, v + next * a.vs[2], a.vs[2], a.tk - next, a.dvalue);
    }
    commit();
    bool mine = own < rows && j0 < endKey(a, i0 + own + 16 * MT) && next > firstKey(a, i0 + own);
    u32 keep[MT], see[MT];
#pragma unroll
    for (int m = 0; mine && m < MT; m++) {
      keep[m] = a.threshold == 0 ? 0xffffffffu : kept<NT, false>(a, b, h, i0 + own + 16 * m, j0);
      see[m] = seen<NT, false>(a, b, h, i0 + own + 16 * m, j0);
    }
    await<1>();
    __syncthreads();
    if (HELD && j0 == first) {
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int x = 0; x < D / 16; x++) Rows<D>::left(held[HELD ? m : 0][HELD ? x : 0], base, own + 16 * m, x);
    }
    if (mine) {
      f32 s[MT][NT][4];
      products<T, D, MT, NT, HELD>(s, held, base, own, now);
      hide(s, see);
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          f32 top = most[m][r];
#pragma unroll
          for (int n = 0; n < NT; n++) top = fmaxf(top, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
          top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
          top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
          f32 shift = top == -inf ? 0 : top * factor, less = power2(fmaf(most[m][r], factor, -shift)), partial = 0;
          most[m][r] = top;
#pragma unroll
          for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
              f32 p = power2(fmaf(s[m][n][e], factor, -shift));
              partial += p;
              s[m][n][e] = p;
            }
          sum[m][r] = fmaf(sum[m][r], less, partial);
#pragma unroll
          for (int x = 0; x < D / 8; x++) acc[m][x][2 * r] *= less, acc[m][x][2 * r + 1] *= less;
        }
      if (a.threshold != 0) {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
          for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] = keep[m] & 1u << (4 * n + e) ? s[m][n][e] : 0;
      }
      add<T, D, MT, NT>(acc, s, now + stage / 2);
    }
    __syncthreads();
  }
  f32 scale = a.threshold == 0 ? 1 : (f32)a.keepScale;
#pragma unroll
  for (int m = 0; m < MT; m++) {
    f32 by[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      f32 x = sum[m][r];
      x += __shfl_xor_sync(0xffffffffu, x, 1);
      x += __shfl_xor_sync(0xffffffffu, x, 2);
      by[r] = x == 0 ? 0 : scale / x;
      int i = own + 16 * m + g + 8 * r;
      if (t == 0 && i < rows)
        ((f32 *)a.lse)[((i64)b * a.heads + h) * a.tq + i0 + i] = fmaf(most[m][r] * factor, ln2, logf(x));
    }
    Rows<D>::put(shared, 0, own + 16 * m, acc[m], by[0], by[1],
                 (T *)a.out + b * a.os[0] + h * a.os[1] + i0 * a.os[2], a.os[2], rows, a.dvalue);
  }
}

// grad turns products into probabilities behind dropout, but for its scale, and products' gradients g into those of the
// scores, but for the scale. lse is that of the query to base 2, +∞ where no key is seen.
DEVICE void grad(f32 &s, f32 &g, f32 factor, f32 lse, f32 delta, bool keep, f32 keepScale) {
  f32 p = power2(fmaf(s, factor, -lse));
  g = p * ((keep ? g * keepScale : 0) - delta);
  s = keep ? p : 0;
}

// base2 is a log-sum-exp for grad.
DEVICE f32 base2(f32 lse) { return lse == -__uint_as_float(0x7f800000u) ? -lse : lse * log2e; }

// gradQuery: blocks are [batch, head, tile of queries]. Shared memory holds queries, gradients of results, and two tiles
// of keys and values.
template <class T, int D, int MT, int NT, bool HELD> DEVICE void gradQuery(const AttentionArgs &a) {
  const int queries = 16 * MT * warps, keys = 8 * NT, stage = 2 * keys * Rows<D>::bytes;
  int tiles = (a.tq + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries;
  int h = blockIdx.x / tiles % a.heads, b = blockIdx.x / tiles / a.heads, kv = h / (a.heads / a.kvHeads);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  int rows = lesser(queries, a.tq - i0), own = 16 * MT * warp;
  const T *k = (const T *)a.k + b * a.ks[0] + kv * a.ks[1], *v = (const T *)a.v + b * a.vs[0] + kv * a.vs[1];
  u32 base = sharedAddress(shared), douts = base + queries * Rows<D>::bytes, tile = douts + queries * Rows<D>::bytes;
  f32 factor = (f32)a.scale * log2e;
  f32 keepScale = a.threshold == 0 ? 1 : (f32)a.keepScale;

  int first = firstKey(a, i0) / keys * keys, end = endKey(a, i0 + rows);
  if (first < end) {
    Rows<D>::template fetch<queries>(base, (const T *)a.q + b * a.qs[0] + h * a.qs[1] + i0 * a.qs[2], a.qs[2], rows, a.d);
    Rows<D>::template fetch<queries>(douts, (const T *)a.dout + b * a.dos[0] + h * a.dos[1] + i0 * a.dos[2], a.dos[2],
                                     rows, a.dvalue);
    Rows<D>::template fetch<keys>(tile, k + first * a.ks[2], a.ks[2], a.tk - first, a.d);
    Rows<D>::template fetch<keys>(tile + stage / 2, v + first * a.vs[2], a.vs[2], a.tk - first, a.dvalue);
    commit();
  }
  f32 acc[MT][D / 8][4], lse[MT][2], delta[MT][2];
  u32 heldQ[HELD ? MT : 1][HELD ? D / 16 : 1][4], heldD[HELD ? MT : 1][HELD ? D / 16 : 1][4];
  clear(acc);
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int i = own + 16 * m + g + 8 * r;
      i64 at = ((i64)b * a.heads + h) * a.tq + i0 + i;
      lse[m][r] = i < rows ? base2(((const f32 *)a.lse)[at]) : 0;
      delta[m][r] = i < rows ? ((const f32 *)a.delta)[at] : 0;
    }

  for (int j0 = first, odd = 0; j0 < end; j0 += keys, odd ^= 1) {
    int next = j0 + keys;
    u32 now = tile + odd * stage, later = tile + (odd ^ 1) * stage;
    if (next < end) {
      Rows<D>::template fetch<keys>(later, k + next * a.ks[2], a.ks[2], a.tk - next, a.d);
      Rows<D>::template fetch<keys>(later + stage / 2, v + next * a.vs[2], a.vs[2], a.tk - next, a.dvalue);
    }
    commit();
    bool mine = own < rows && j0 < endKey(a, i0 + own + 16 * MT) && next > firstKey(a, i0 + own);
    u32 keep[MT], see[MT];
#pragma unroll
    for (int m = 0; mine && m < MT; m++) {
      keep[m] = a.threshold == 0 ? 0xffffffffu : kept<NT, false>(a, b, h, i0 + own + 16 * m, j0);
      see[m] = seen<NT, false>(a, b, h, i0 + own + 16 * m, j0);
    }
    await<1>();
    __syncthreads();
    if (HELD && j0 == first) {
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int x = 0; x < D / 16; x++) {
          Rows<D>::left(heldQ[HELD ? m : 0][HELD ? x : 0], base, own + 16 * m, x);
          Rows<D>::left(heldD[HELD ? m : 0][HELD ? x : 0], douts, own + 16 * m, x);
        }
    }
    if (mine) {
      f32 s[MT][NT][4], d[MT][NT][4];
      products<T, D, MT, NT, HELD>(s, heldQ, base, own, now);
      products<T, D, MT, NT, HELD>(d, heldD, douts, own, now + stage / 2);
      hide(s, see);
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            grad(s[m][n][e], d[m][n][e], factor, lse[m][e / 2], delta[m][e / 2], keep[m] & 1u << (4 * n + e), keepScale);
      add<T, D, MT, NT>(acc, d, now);
    }
    __syncthreads();
  }
  f32 scale = (f32)a.scale;
#pragma unroll
  for (int m = 0; m < MT; m++)
    Rows<D>::put(shared, 0, own + 16 * m, acc[m], scale, scale,
                 (T *)a.dq + b * a.dqs[0] + h * a.dqs[1] + i0 * a.dqs[2], a.dqs[2], rows, a.d);
}

// gradKey: blocks are [batch, key head, tile of keys]. Query heads of the group pass by in order, and tiles of their
// queries. Shared memory holds keys, values, two tiles of queries and gradients of results, and two of the queries'
// log-sum-exps and deltas.
template <class T, int D, int MT, int NT, bool HELD> DEVICE void gradKey(const AttentionArgs &a) {
  const int keys = 16 * MT * warps, queries = 8 * NT, operand = queries * Rows<D>::bytes;
  const int stage = 2 * operand + 8 * queries;
  int tiles = (a.tk + keys - 1) / keys, j0 = blockIdx.x % tiles * keys;
  int kv = blockIdx.x / tiles % a.kvHeads, b = blockIdx.x / tiles / a.kvHeads, group = a.heads / a.kvHeads;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
  int rows = lesser(keys, a.tk - j0), own = 16 * MT * warp;
  u32 base = sharedAddress(shared), values = base + keys * Rows<D>::bytes, tile = values + keys * Rows<D>::bytes;
  f32 factor = (f32)a.scale * log2e;
  f32 keepScale = a.threshold == 0 ? 1 : (f32)a.keepScale;

  int first = firstQuery(a, j0) / queries * queries, end = endQuery(a, j0 + rows);
  auto fetch = [&](u32 to, int h, int i0) {
    int n = a.tq - i0;
    Rows<D>::template fetch<queries>(to, (const T *)a.q + b * a.qs[0] + h * a.qs[1] + i0 * a.qs[2], a.qs[2], n, a.d);
    Rows<D>::template fetch<queries>(to + operand, (const T *)a.dout + b * a.dos[0] + h * a.dos[1] + i0 * a.dos[2],
                                     a.dos[2], n, a.dvalue);
    int i = threadIdx.x % queries;
    const f32 *x = (const f32 *)(threadIdx.x < queries ? a.lse : a.delta) + ((i64)b * a.heads + h) * a.tq + i0;
    if (threadIdx.x < 2 * queries) copy4(to + 2 * operand + 4 * threadIdx.x, x + (i < n ? i : 0), i < n);
  };
  int h = kv * group, i0 = first, last = first < end ? h + group : h;
  if (h < last) {
    Rows<D>::template fetch<keys>(base, (const T *)a.k + b * a.ks[0] + kv * a.ks[1] + j0 * a.ks[2], a.ks[2], rows, a.d);
    Rows<D>::template fetch<keys>(values, (const T *)a.v + b * a.vs[0] + kv * a.vs[1] + j0 * a.vs[2], a.vs[2], rows,
                                  a.dvalue);
    fetch(tile, h, i0);
    commit();
  }
  f32 dk[MT][D / 8][4], dv[MT][D / 8][4];
  u32 heldK[HELD ? MT : 1][HELD ? D / 16 : 1][4], heldV[HELD ? MT : 1][HELD ? D / 16 : 1][4];
  clear(dk);
  clear(dv);

  for (int odd = 0; h < last; odd ^= 1) {
    u32 now = tile + odd * stage;
    int nextH = h, next = i0 + queries;
    if (next >= end) nextH++, next = first;
    if (nextH < last) fetch(tile + (odd ^ 1) * stage, nextH, next);
    commit();
    bool mine = own < rows && i0 < endQuery(a, j0 + own + 16 * MT) && i0 + queries > firstQuery(a, j0 + own);
    u32 keep[MT], see[MT];
#pragma unroll
    for (int m = 0; mine && m < MT; m++) {
      keep[m] = a.threshold == 0 ? 0xffffffffu : kept<NT, true>(a, b, h, i0, j0 + own + 16 * m);
      see[m] = seen<NT, true>(a, b, h, i0, j0 + own + 16 * m);
    }
    await<1>();
    __syncthreads();
    if (HELD && h == kv * group && i0 == first) {
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int x = 0; x < D / 16; x++) {
          Rows<D>::left(heldK[HELD ? m : 0][HELD ? x : 0], base, own + 16 * m, x);
          Rows<D>::left(heldV[HELD ? m : 0][HELD ? x : 0], values, own + 16 * m, x);
        }
    }
    if (mine) {
      f32 s[MT][NT][4], d[MT][NT][4];
      products<T, D, MT, NT, HELD>(s, heldK, base, own, now);
      products<T, D, MT, NT, HELD>(d, heldV, values, own, now + operand);
      hide(s, see);
      const char *rowsOf = shared + (now - base) + 2 * operand;
#pragma unroll
      for (int n = 0; n < NT; n++) {
        float2 lse = *(const float2 *)(rowsOf + 4 * (8 * n + 2 * t));
        float2 delta = *(const float2 *)(rowsOf + 4 * (queries + 8 * n + 2 * t));
        lse.x = base2(lse.x), lse.y = base2(lse.y);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            grad(s[m][n][e], d[m][n][e], factor, e % 2 ? lse.y : lse.x, e % 2 ? delta.y : delta.x,
                 keep[m] & 1u << (4 * n + e), keepScale);
      }
      add<T, D, MT, NT>(dv, s, now + operand);
      add<T, D, MT, NT>(dk, d, now);
    }
    __syncthreads();
    h = nextH, i0 = next;
  }
  f32 scale = (f32)a.scale;
#pragma unroll
  for (int m = 0; m < MT; m++) {
    Rows<D>::put(shared, 0, own + 16 * m, dk[m], scale, scale,
                 (T *)a.dk + b * a.dks[0] + kv * a.dks[1] + j0 * a.dks[2], a.dks[2], rows, a.d);
    Rows<D>::put(shared, keys * Rows<D>::bytes, own + 16 * m, dv[m], keepScale, keepScale,
                 (T *)a.dv + b * a.dvs[0] + kv * a.dvs[1] + j0 * a.dvs[2], a.dvs[2], rows, a.dvalue);
  }
}

#define KERNELS(D, suffix, T, FM, FN, FH, QM, QN, QH, KM, KN, KH)                                                        \
  KERNEL __launch_bounds__(128) flash_##D##_##suffix(AttentionArgs a) { forward<T, D, FM, FN, FH>(a); }                  \
  KERNEL __launch_bounds__(128) flash_dq_##D##_##suffix(AttentionArgs a) { gradQuery<T, D, QM, QN, QH>(a); }             \
  KERNEL __launch_bounds__(128) flash_dkdv_##D##_##suffix(AttentionArgs a) { gradKey<T, D, KM, KN, KH>(a); }

// What stays has 16·4·M rows; what passes by 8·N. ptxas 13.0 finds registers for all, without spills (forward, gradient
// of queries, gradient of keys):
//
//                         for sm_80        for sm_90a
//   up to 64 elements     241, 243, 255    241, 245, 255
//   up to 128 elements    243, 248, 240    245, 246, 241
//
// so that two blocks of 128 threads fit a multiprocessor.
KERNELS(64, bf16, bf16, 2, 8, true, 2, 4, false, 2, 4, false)
KERNELS(64, f16, f16, 2, 8, true, 2, 4, false, 2, 4, false)
KERNELS(128, bf16, bf16, 2, 4, false, 1, 8, false, 1, 4, false)
KERNELS(128, f16, f16, 2, 4, false, 1, 8, false, 1, 4, false)
