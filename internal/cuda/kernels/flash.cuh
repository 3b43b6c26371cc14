// SPDX-License-Identifier: Apache-2.0

// OpAttention and OpAttentionGrad of bfloat16 and float16 on the matrix units, after Dao, "FlashAttention-2" (2023):
// the kernels of flash.cu and, with dropout, of flash_dropout.cu.
//
// Heads have up to D = 64 or 128 elements, of which there are a multiple of 8; rows are aligned to 16 bytes; the scale
// is positive; a mask is of bools. attention.cu has the rest. Products are summed in float32 and in one
// order, which depends on the shape alone: the gradients of keys are computed by tiles of keys, those of queries by tiles
// of queries, in two kernels, so that nothing is added by two blocks.
//
// A block has four warps. What stays (queries in the forward pass and for their gradient, else keys and values) has 16
// or 32 rows a warp; what passes by comes in tiles, one of which is copied while the one before is computed with.
// Scores, probabilities and their gradients never leave registers. A warp leaves out tiles that its rows do not see.
#pragma once

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

// add computes acc += p·y: p rounded, two numbers of a row in a word, as products leaves them; 8·NT rows of y.
template <class T, int D, int MT, int NT>
DEVICE void add(f32 (&acc)[MT][D / 8][4], const u32 (&p)[MT][NT][2], u32 y) {
#pragma unroll
  for (int n = 0; n < NT; n += 2) {
    u32 a[MT][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
      a[m][0] = p[m][n][0], a[m][1] = p[m][n][1], a[m][2] = p[m][n + 1][0], a[m][3] = p[m][n + 1][1];
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

// Dropout's decisions are drawn by flash_keep: bit j%32 of word [j/32][i] of a head is set if query i keeps key j. The
// words are for queries up to a multiple of 128, and keys likewise.
DEVICE int keepRows(const AttentionArgs &a) { return (a.tq + 127) / 128 * 128; }
DEVICE int keepWords(const AttentionArgs &a) { return (a.tk + 127) / 128 * 4; }
DEVICE u32 *keepOf(const AttentionArgs &a, int head) { return (u32 *)a.keep + (i64)head * keepWords(a) * keepRows(a); }

// Kept is what a warp knows of them for a tile: 16·MT rows and 8·NT columns. Each lane loads words of its own, and lanes
// ask each other for what they need. Without DROP it is nothing.
template <bool DROP, int MT, int NT> struct Kept {
  u32 words[DROP ? (MT * NT + 7) / 8 : 1];

  // load takes the decisions of 16·MT queries and of 8·NT keys from j on; keep is the first word of the lane's query.
  MEMBER void load(const AttentionArgs &a, const u32 *keep, int j) {
    if (!DROP) return;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int x = 0; x < (MT * NT + 7) / 8; x++)
      words[x] = keep[(i64)(j / 32 + (lane + 32 * x) / (16 * MT) % (NT / 4)) * keepRows(a)];
  }
  // masks is of rows g + 8·r of the m-th 16, and of the four products from the n-th on: by the sign of its byte k,
  // columns 2t (even) and 2t+1 (odd) of product n+k.
  MEMBER void masks(u32 &even, u32 &odd, int m, int r, int n) {
    int lane = threadIdx.x % 32, at = n / 4 * 16 * MT + 16 * m + 8 * r;
    odd = __shfl_sync(0xffffffffu, words[DROP ? at / 32 : 0], at % 32 + lane / 4) << (6 - lane % 4 * 2);
    even = odd << 1;
  }

  // loadTurned takes those of 32 queries and of 16·MT keys from j on, where keys are rows and queries columns; keep is
  // the word of the lane's query.
  MEMBER void loadTurned(const u32 *keep, int j) {
    static_assert(NT == 4, "a query for each lane");
    if (DROP) words[0] = *keep >> j % 32;
  }
  // masksTurned is of the n-th product: by the sign of its byte 2·m+r, row g + 8·r of the m-th 16, and column 2t or 2t+1.
  MEMBER void masksTurned(u32 &even, u32 &odd, int n) {
    int lane = threadIdx.x % 32, query = 8 * n + lane % 4 * 2;
    even = __shfl_sync(0xffffffffu, words[0], query) << (7 - lane / 4);
    odd = __shfl_sync(0xffffffffu, words[0], query + 1) << (7 - lane / 4);
  }
};

// only is v or 0, by the sign of byte k of x; only2 is two halves, by that of low and that of high.
DEVICE f32 only(f32 v, u32 x, int k) {
  return __uint_as_float(__float_as_uint(v) & permute(x, x, 0x8888 + k * 0x1111));
}
DEVICE u32 only2(u32 v, u32 low, u32 high, int k) { return v & permute(low, high, 0xcc88 + k * 0x1111); }

// hide makes products −∞ whose query does not see the key: 16 × 8·NT of them. TURNED: rows are keys and columns queries.
// i0 and j0 are the first query and the first key; maskOf gives the head's mask.
template <bool TURNED, int NT, class Mask>
DEVICE void hide(f32 (&s)[NT][4], const AttentionArgs &a, Mask maskOf, int i0, int j0) {
  int i1 = i0 + (TURNED ? 8 * NT : 16) - 1, j1 = j0 + (TURNED ? 16 : 8 * NT) - 1; // the last
  bool all = j1 < a.tk && j0 >= i1 + a.lower && j1 < i0 + a.upper;
  if (all && a.maskKind == 0) return;
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const u8 *mask = a.maskKind == 0 ? nullptr : maskOf();
  u32 bits = 0;
#pragma unroll 4
  for (int x = 0; x < 4 * NT; x++) {
    int row = g + x % 4 / 2 * 8, col = x / 4 * 8 + 2 * t + x % 2;
    int i = i0 + (TURNED ? col : row), j = j0 + (TURNED ? row : col);
    bool yes = visible(a, i, j);
    if (a.maskKind != 0) yes = yes && i < a.tq && mask[i * a.ms[2] + j * a.ms[3]] != 0;
    bits |= (yes ? 1u : 0u) << x;
  }
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (!(bits & 1u << (4 * n + e))) s[n][e] = -__uint_as_float(0x7f800000u);
}

// arrived ends the copies that all threads began; what was read before may be overwritten.
DEVICE void arrived() {
  commit();
  await<0>();
  __syncthreads();
}

extern __shared__ __align__(128) char shared[];

// Head is the head of a block: batch, head, and its number among those of the launch.
struct Head {
  int b, h, number;
};

// headOf finds it: n is the number of blocks of a head, heads that of heads of a sample. What is rarely used, or after
// the loop, is found again, rather than kept in registers of which there are no more: the compiler does not see that
// block is the same number.
DEVICE Head headOf(const AttentionArgs &a, int block, int n, int heads) {
  int number = block / n, head = a.first * (heads / a.kvHeads) + number;
  return {head / heads, head % heads, number};
}
DEVICE int blockAgain() {
  int block = blockIdx.x;
  asm volatile("" : "+r"(block));
  return block;
}

// maskOf is the mask of a head.
DEVICE const u8 *maskOf(const AttentionArgs &a, int b, int h) { return (const u8 *)a.mask + b * a.ms[0] + h * a.ms[1]; }

// forward: blocks are [head, tile of queries], the last tiles, which see most, first. Shared memory holds queries, and
// two tiles of keys and values.
template <class T, bool DROP, int D, int MT, int NT, bool HELD> DEVICE void forward(const AttentionArgs &a) {
  const int queries = 16 * MT * warps, keys = 8 * NT, stage = 2 * keys * Rows<D>::bytes;
  const f32 inf = __uint_as_float(0x7f800000u);
  int tiles = (a.tq + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries;
  Head head = headOf(a, blockIdx.x, tiles, a.heads);
  int b = head.b, h = head.h, kv = h / (a.heads / a.kvHeads);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int rows = lesser(queries, a.tq - i0), own = 16 * MT * warp;
  const T *k = (const T *)a.k + b * a.ks[0] + kv * a.ks[1], *v = (const T *)a.v + b * a.vs[0] + kv * a.vs[1];
  const u32 *keep = keepOf(a, head.number) + i0 + own + lane % (16 * MT);
  u32 base = sharedAddress(shared), tile = base + queries * Rows<D>::bytes;
  f32 factor = (f32)a.scale * log2e;

  int first = firstKey(a, i0) / keys * keys, end = endKey(a, i0 + rows);
  if (first < end) {
    Rows<D>::template fetch<queries>(base, (const T *)a.q + b * a.qs[0] + h * a.qs[1] + i0 * a.qs[2], a.qs[2], rows, a.d);
    Rows<D>::template fetch<keys>(tile, k + first * a.ks[2], a.ks[2], a.tk - first, a.d);
    Rows<D>::template fetch<keys>(tile + stage / 2, v + first * a.vs[2], a.vs[2], a.tk - first, a.dvalue);
  }
  arrived();
  f32 acc[MT][D / 8][4], most[MT][2], sum[MT][2];
  u32 held[HELD ? MT : 1][HELD ? D / 16 : 1][4];
  clear(acc);
#pragma unroll
  for (int m = 0; m < MT; m++) {
    most[m][0] = most[m][1] = -inf, sum[m][0] = sum[m][1] = 0;
#pragma unroll
    for (int x = 0; HELD && x < D / 16; x++) Rows<D>::left(held[HELD ? m : 0][HELD ? x : 0], base, own + 16 * m, x);
  }

  auto mask = [&] {
    Head head = headOf(a, blockAgain(), tiles, a.heads);
    return maskOf(a, head.b, head.h);
  };
  for (int j0 = first, odd = 0; j0 < end; j0 += keys, odd ^= 1) {
    int next = j0 + keys;
    u32 now = tile + odd * stage, later = tile + (odd ^ 1) * stage;
    if (next < end) {
      Rows<D>::template fetch<keys>(later, k + next * a.ks[2], a.ks[2], a.tk - next, a.d);
      Rows<D>::template fetch<keys>(later + stage / 2, v + next * a.vs[2], a.vs[2], a.tk - next, a.dvalue);
    }
    if (own < rows && j0 < endKey(a, i0 + own + 16 * MT) && next > firstKey(a, i0 + own)) {
      Kept<DROP, MT, NT> kept;
      kept.load(a, keep, j0);
      f32 s[MT][NT][4];
      products<T, D, MT, NT, HELD>(s, held, base, own, now);
#pragma unroll
      for (int m = 0; m < MT; m++) hide<false>(s[m], a, mask, i0 + own + 16 * m, j0);
      u32 p[MT][NT][2];
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
          u32 even, odd;
#pragma unroll
          for (int n = 0; n < NT; n++) {
            f32 low = power2(fmaf(s[m][n][2 * r], factor, -shift));
            f32 high = power2(fmaf(s[m][n][2 * r + 1], factor, -shift));
            partial += low;
            partial += high;
            p[m][n][r] = Unit<T>::pack(low, high);
            if (DROP && n % 4 == 0) kept.masks(even, odd, m, r, n);
            if (DROP) p[m][n][r] = only2(p[m][n][r], even, odd, n % 4);
          }
          sum[m][r] = fmaf(sum[m][r], less, partial);
#pragma unroll
          for (int x = 0; x < D / 8; x++) acc[m][x][2 * r] *= less, acc[m][x][2 * r + 1] *= less;
        }
      add<T, D, MT, NT>(acc, p, now + stage / 2);
    }
    arrived();
  }
  head = headOf(a, blockAgain(), tiles, a.heads);
  b = head.b, h = head.h;
  i0 = (tiles - 1 - blockAgain() % tiles) * queries;
  f32 scale = DROP ? (f32)a.keepScale : 1;
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

// base2 is a log-sum-exp for grad.
DEVICE f32 base2(f32 lse) { return lse == -__uint_as_float(0x7f800000u) ? -lse : lse * log2e; }

// unkept is what sums of gradients are scaled by at the end, in place of each summand, and its inverse; 1 where nothing
// is kept, since what is not of dropout's results stays.
DEVICE f32 unkept(const AttentionArgs &a) { return a.keepScale == 0 ? 1 : (f32)a.keepScale; }

// gradQuery: blocks are [head, tile of queries]. Shared memory holds queries, gradients of results, and two tiles of keys
// and values.
template <class T, bool DROP, int D, int MT, int NT, bool HELD> DEVICE void gradQuery(const AttentionArgs &a) {
  const int queries = 16 * MT * warps, keys = 8 * NT, stage = 2 * keys * Rows<D>::bytes;
  int tiles = (a.tq + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries;
  Head head = headOf(a, blockIdx.x, tiles, a.heads);
  int b = head.b, h = head.h, kv = h / (a.heads / a.kvHeads);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  int rows = lesser(queries, a.tq - i0), own = 16 * MT * warp;
  const T *k = (const T *)a.k + b * a.ks[0] + kv * a.ks[1], *v = (const T *)a.v + b * a.vs[0] + kv * a.vs[1];
  const u32 *keep = keepOf(a, head.number) + i0 + own + lane % (16 * MT);
  u32 base = sharedAddress(shared), douts = base + queries * Rows<D>::bytes, tile = douts + queries * Rows<D>::bytes;
  f32 factor = (f32)a.scale * log2e;

  int first = firstKey(a, i0) / keys * keys, end = endKey(a, i0 + rows);
  if (first < end) {
    Rows<D>::template fetch<queries>(base, (const T *)a.q + b * a.qs[0] + h * a.qs[1] + i0 * a.qs[2], a.qs[2], rows, a.d);
    Rows<D>::template fetch<queries>(douts, (const T *)a.dout + b * a.dos[0] + h * a.dos[1] + i0 * a.dos[2], a.dos[2],
                                     rows, a.dvalue);
    Rows<D>::template fetch<keys>(tile, k + first * a.ks[2], a.ks[2], a.tk - first, a.d);
    Rows<D>::template fetch<keys>(tile + stage / 2, v + first * a.vs[2], a.vs[2], a.tk - first, a.dvalue);
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
      if (DROP) delta[m][r] /= unkept(a);
    }
  arrived();
#pragma unroll
  for (int m = 0; HELD && m < MT; m++)
#pragma unroll
    for (int x = 0; x < D / 16; x++) {
      Rows<D>::left(heldQ[HELD ? m : 0][HELD ? x : 0], base, own + 16 * m, x);
      Rows<D>::left(heldD[HELD ? m : 0][HELD ? x : 0], douts, own + 16 * m, x);
    }

  auto mask = [&] {
    Head head = headOf(a, blockAgain(), tiles, a.heads);
    return maskOf(a, head.b, head.h);
  };
  for (int j0 = first, odd = 0; j0 < end; j0 += keys, odd ^= 1) {
    int next = j0 + keys;
    u32 now = tile + odd * stage, later = tile + (odd ^ 1) * stage;
    if (next < end) {
      Rows<D>::template fetch<keys>(later, k + next * a.ks[2], a.ks[2], a.tk - next, a.d);
      Rows<D>::template fetch<keys>(later + stage / 2, v + next * a.vs[2], a.vs[2], a.tk - next, a.dvalue);
    }
    if (own < rows && j0 < endKey(a, i0 + own + 16 * MT) && next > firstKey(a, i0 + own)) {
      Kept<DROP, MT, NT> kept;
      kept.load(a, keep, j0);
      f32 s[MT][NT][4], d[MT][NT][4];
      products<T, D, MT, NT, HELD>(s, heldQ, base, own, now);
      products<T, D, MT, NT, HELD>(d, heldD, douts, own, now + stage / 2);
      u32 ds[MT][NT][2]; // gradients of scores, except for their scale
#pragma unroll
      for (int m = 0; m < MT; m++) {
        hide<false>(s[m], a, mask, i0 + own + 16 * m, j0);
#pragma unroll
        for (int r = 0; r < 2; r++) {
          u32 even, odd;
#pragma unroll
          for (int n = 0; n < NT; n++) {
            if (DROP && n % 4 == 0) kept.masks(even, odd, m, r, n);
            f32 low = power2(fmaf(s[m][n][2 * r], factor, -lse[m][r]));
            f32 high = power2(fmaf(s[m][n][2 * r + 1], factor, -lse[m][r]));
            low *= (DROP ? only(d[m][n][2 * r], even, n % 4) : d[m][n][2 * r]) - delta[m][r];
            high *= (DROP ? only(d[m][n][2 * r + 1], odd, n % 4) : d[m][n][2 * r + 1]) - delta[m][r];
            ds[m][n][r] = Unit<T>::pack(low, high);
          }
        }
      }
      add<T, D, MT, NT>(acc, ds, now);
    }
    arrived();
  }
  head = headOf(a, blockAgain(), tiles, a.heads);
  b = head.b, h = head.h;
  i0 = (tiles - 1 - blockAgain() % tiles) * queries;
  f32 scale = DROP ? (f32)a.scale * unkept(a) : (f32)a.scale;
#pragma unroll
  for (int m = 0; m < MT; m++)
    Rows<D>::put(shared, 0, own + 16 * m, acc[m], scale, scale,
                 (T *)a.dq + b * a.dqs[0] + h * a.dqs[1] + i0 * a.dqs[2], a.dqs[2], rows, a.d);
}

// gradKey: blocks are [key head, tile of keys]. Query heads of the group pass by in order, and tiles of their queries.
// Shared memory holds keys, values, two tiles of queries and gradients of results, and two of the queries'
// log-sum-exps and deltas.
template <class T, bool DROP, int D, int MT, int NT, bool HELD> DEVICE void gradKey(const AttentionArgs &a) {
  const int keys = 16 * MT * warps, queries = 8 * NT, operand = queries * Rows<D>::bytes;
  const int stage = 2 * operand + 8 * queries;
  int tiles = (a.tk + keys - 1) / keys, j0 = blockIdx.x % tiles * keys, group = a.heads / a.kvHeads;
  Head head = headOf(a, blockIdx.x, tiles, a.kvHeads);
  int b = head.b, kv = head.h;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
  int rows = lesser(keys, a.tk - j0), own = 16 * MT * warp, j = j0 + own;
  const u32 *keep = keepOf(a, head.number * group) + (i64)(j / 32) * keepRows(a) + lane;
  u32 base = sharedAddress(shared), values = base + keys * Rows<D>::bytes, tile = values + keys * Rows<D>::bytes;
  f32 factor = (f32)a.scale * log2e, inverse = DROP ? 1 / unkept(a) : 1;

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
  }
  arrived();
  f32 dk[MT][D / 8][4], dv[MT][D / 8][4];
  u32 heldK[HELD ? MT : 1][HELD ? D / 16 : 1][4], heldV[HELD ? MT : 1][HELD ? D / 16 : 1][4];
  clear(dk);
  clear(dv);
#pragma unroll
  for (int m = 0; HELD && m < MT; m++)
#pragma unroll
    for (int x = 0; x < D / 16; x++) {
      Rows<D>::left(heldK[HELD ? m : 0][HELD ? x : 0], base, own + 16 * m, x);
      Rows<D>::left(heldV[HELD ? m : 0][HELD ? x : 0], values, own + 16 * m, x);
    }

  auto mask = [&] { return maskOf(a, headOf(a, blockAgain(), tiles, a.kvHeads).b, h); };
  for (int odd = 0; h < last; odd ^= 1) {
    u32 now = tile + odd * stage;
    int nextH = h, next = i0 + queries;
    if (next >= end) nextH++, next = first;
    if (nextH < last) fetch(tile + (odd ^ 1) * stage, nextH, next);
    if (j < a.tk && i0 < endQuery(a, j + 16 * MT) && i0 + queries > firstQuery(a, j)) {
      Kept<DROP, MT, NT> kept;
      kept.loadTurned(keep + i0, j);
      f32 s[MT][NT][4], d[MT][NT][4];
      products<T, D, MT, NT, HELD>(s, heldK, base, own, now);
      products<T, D, MT, NT, HELD>(d, heldV, values, own, now + operand);
#pragma unroll
      for (int m = 0; m < MT; m++) hide<true>(s[m], a, mask, i0, j + 16 * m);
      const char *rowsOf = shared + (now - base) + 2 * operand;
      u32 p[MT][NT][2], ds[MT][NT][2]; // probabilities behind dropout and gradients of scores, except for their scales
#pragma unroll
      for (int n = 0; n < NT; n++) {
        float2 lse = *(const float2 *)(rowsOf + 4 * (8 * n + 2 * t));
        float2 delta = *(const float2 *)(rowsOf + 4 * (queries + 8 * n + 2 * t));
        lse.x = base2(lse.x), lse.y = base2(lse.y);
        if (DROP) delta.x *= inverse, delta.y *= inverse;
        u32 even, odd;
        if (DROP) kept.masksTurned(even, odd, n);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            f32 low = power2(fmaf(s[m][n][2 * r], factor, -lse.x)), lowKept = low;
            f32 high = power2(fmaf(s[m][n][2 * r + 1], factor, -lse.y)), highKept = high;
            f32 lowGrad = d[m][n][2 * r], highGrad = d[m][n][2 * r + 1];
            if (DROP) { // p·(kept g − δ) = kept p·g − p·δ
              lowKept = only(low, even, 2 * m + r);
              highKept = only(high, odd, 2 * m + r);
              lowGrad = fmaf(lowKept, lowGrad, -(low * delta.x));
              highGrad = fmaf(highKept, highGrad, -(high * delta.y));
            } else {
              lowGrad = low * (lowGrad - delta.x);
              highGrad = high * (highGrad - delta.y);
            }
            p[m][n][r] = Unit<T>::pack(lowKept, highKept);
            ds[m][n][r] = Unit<T>::pack(lowGrad, highGrad);
          }
      }
      add<T, D, MT, NT>(dv, p, now + operand);
      add<T, D, MT, NT>(dk, ds, now);
    }
    arrived();
    if (nextH != h) keep += keepOf(a, 1) - keepOf(a, 0);
    h = nextH, i0 = next;
  }
  head = headOf(a, blockAgain(), tiles, a.kvHeads);
  b = head.b, kv = head.h;
  j0 = blockAgain() % tiles * keys, rows = lesser(keys, a.tk - j0), own = j - j0;
  f32 kept = DROP ? unkept(a) : 1, scale = DROP ? (f32)a.scale * kept : (f32)a.scale;
#pragma unroll
  for (int m = 0; m < MT; m++) {
    Rows<D>::put(shared, 0, own + 16 * m, dk[m], scale, scale,
                 (T *)a.dk + b * a.dks[0] + kv * a.dks[1] + j0 * a.dks[2], a.dks[2], rows, a.d);
    Rows<D>::put(shared, keys * Rows<D>::bytes, own + 16 * m, dv[m], kept, kept,
                 (T *)a.dv + b * a.dvs[0] + kv * a.dvs[1] + j0 * a.dvs[2], a.dvs[2], rows, a.dvalue);
  }
}

// QB is how many blocks of the gradient of queries shall fit on a multiprocessor at least, by their registers.
#define FLASH_KERNELS(name, T, DROP, D, FM, FN, FH, QM, QN, QH, QB, KM, KN, KH)                                       \
  KERNEL __launch_bounds__(128) name##_##D##_##T(AttentionArgs a) { forward<T, DROP, D, FM, FN, FH>(a); }             \
  KERNEL __launch_bounds__(128, QB) name##_dq_##D##_##T(AttentionArgs a) { gradQuery<T, DROP, D, QM, QN, QH>(a); }    \
  KERNEL __launch_bounds__(128) name##_dkdv_##D##_##T(AttentionArgs a) { gradKey<T, DROP, D, KM, KN, KH>(a); }

// What stays has 16·4·M rows; what passes by 8·N.
#define FLASH(name, DROP)                                                            \
  FLASH_KERNELS(name, bf16, DROP, 64, 2, 8, true, 1, 4, true, 3, 2, 4, false)        \
  FLASH_KERNELS(name, f16, DROP, 64, 2, 8, true, 1, 4, true, 3, 2, 4, false)         \
  FLASH_KERNELS(name, bf16, DROP, 128, 2, 4, false, 1, 8, false, 2, 1, 4, false)     \
  FLASH_KERNELS(name, f16, DROP, 128, 2, 4, false, 1, 8, false, 2, 1, 4, false)
