// SPDX-License-Identifier: Apache-2.0

// Embedding, gather, scatter-add and their gradients. Sums go in the order of the indices: where several rows are added
// to one, the positions are sorted by their target first, stably, and then each target is one sum. Nothing is added by
// atomics.

#include "index.cuh"
#include "rows.cuh"

// embedding copies rows of `bytes` bytes, in units of U; a row that does not exist is a fault, and 0.
template <typename U>
DEVICE void embedding(const U *table, Indices ids, U *out, i64 n, i64 units, i64 vocabulary,
                          FaultBlock *block, u32 op) {
  i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= n) return;
  Range range{vocabulary, 0, 0};
  i64 k = ids[row];
  bool bad = range.bad(k);
  if (bad && threadIdx.x == 0 && blockIdx.y == 0) index_fault(block, op, ids, range);
  const U *from = table + (bad ? 0 : k) * units;
  U *to = out + row * units;
  for (i64 i = (i64)blockIdx.y * blockDim.x + threadIdx.x; i < units; i += (i64)gridDim.y * blockDim.x)
    to[i] = bad ? U{} : from[i];
}

KERNEL embedding_16(const uint4 *table, const void *ids, int wide, uint4 *out, i64 n,
                                        i64 units, i64 vocabulary, FaultBlock *block, u32 op) {
  embedding(table, Indices{ids, wide}, out, n, units, vocabulary, block, op);
}
KERNEL embedding_2(const u16 *table, const void *ids, int wide, u16 *out, i64 n,
                                       i64 units, i64 vocabulary, FaultBlock *block, u32 op) {
  embedding(table, Indices{ids, wide}, out, n, units, vocabulary, block, op);
}
KERNEL embedding_1(const u8 *table, const void *ids, int wide, u8 *out, i64 n,
                                       i64 units, i64 vocabulary, FaultBlock *block, u32 op) {
  embedding(table, Indices{ids, wide}, out, n, units, vocabulary, block, op);
}

// The stable sort of (key, position) pairs by keys: least digit first, 8 bits a pass. A block of WARPS warps has a tile
// of TILE pairs, each warp WARP_PAIRS of them in order. A pass is three kernels: sort_count counts the digits of each
// tile, sort_scan makes first places of the counts, and sort_place moves the pairs.

constexpr int BINS = 256, WARPS = 8, ROUNDS = 8, WARP_PAIRS = 32 * ROUNDS, TILE = WARPS * WARP_PAIRS;

// embedding_keys makes keys of ids and numbers the positions. A bad id is a fault, and has the key limit, beyond all.
KERNEL embedding_keys(const void *ids, int wide, u32 *keys, u32 *positions, int n,
                                          i64 limit, FaultBlock *block, u32 op) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Indices x{ids, wide};
  Range range{limit, 0, 0};
  i64 k = x[i];
  if (range.bad(k)) {
    index_fault(block, op, x, range);
    k = limit;
  }
  keys[i] = (u32)k;
  positions[i] = i;
}

// digits counts, for each warp of a block, the digits of its pairs in order, and returns in rank how many pairs of the
// warp before each had its digit.
DEVICE void digits(const u32 *keys, int n, int shift, u32 (*counts)[BINS], u32 (&key)[ROUNDS],
                              u32 (&rank)[ROUNDS]) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int i = lane; i < BINS; i += 32) counts[warp][i] = 0;
  __syncwarp();
  int first = blockIdx.x * TILE + warp * WARP_PAIRS;
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) {
    int i = first + r * 32 + lane;
    bool have = i < n;
    key[r] = have ? keys[i] : 0;
    u32 digit = key[r] >> shift & (BINS - 1);
    u32 peers = __ballot_sync(0xffffffffu, have);
#pragma unroll
    for (int b = 0; b < 8; b++) {
      u32 set = __ballot_sync(0xffffffffu, digit >> b & 1);
      peers &= digit >> b & 1 ? set : ~set;
    }
    u32 before = have ? counts[warp][digit] : 0;
    rank[r] = before + __popc(peers & ((1u << lane) - 1));
    __syncwarp();
    if (have && (peers >> lane) == 1) counts[warp][digit] = before + __popc(peers);
    __syncwarp();
  }
}

// sort_count sets counts[digit][tile].
KERNEL __launch_bounds__(32 * WARPS)
    sort_count(const u32 *keys, u32 *counts, int n, int shift) {
  __shared__ u32 count[WARPS][BINS];
  u32 key[ROUNDS], rank[ROUNDS];
  digits(keys, n, shift, count, key, rank);
  __syncthreads();
  u32 sum = 0;
  for (int w = 0; w < WARPS; w++) sum += count[w][threadIdx.x];
  counts[threadIdx.x * gridDim.x + blockIdx.x] = sum;
}

// sort_scan replaces n counts by the sums of those before, in one block of 1024 threads.
KERNEL __launch_bounds__(1024) sort_scan(u32 *counts, int n) {
  __shared__ u32 warps[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 carry = 0;
  for (int first = 0; first < n; first += 1024) {
    int i = first + threadIdx.x;
    u32 own = i < n ? counts[i] : 0, sum = own;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      u32 other = __shfl_up_sync(0xffffffffu, sum, o);
      if (lane >= o) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      u32 w = warps[lane];
#pragma unroll
      for (int o = 1; o < 32; o <<= 1) {
        u32 other = __shfl_up_sync(0xffffffffu, w, o);
        if (lane >= o) w += other;
      }
      warps[lane] = w;
    }
    __syncthreads();
    if (i < n) counts[i] = carry + (warp > 0 ? warps[warp - 1] : 0) + sum - own;
    carry += warps[31];
    __syncthreads();
  }
}

// sort_place moves the pairs to their places.
KERNEL __launch_bounds__(32 * WARPS)
    sort_place(const u32 *keys, const u32 *positions, u32 *keys_out, u32 *positions_out,
               const u32 *places, int n, int shift) {
  __shared__ u32 count[WARPS][BINS];
  u32 key[ROUNDS], rank[ROUNDS];
  digits(keys, n, shift, count, key, rank);
  __syncthreads();
  u32 place = places[threadIdx.x * gridDim.x + blockIdx.x];
  for (int w = 0; w < WARPS; w++) {
    u32 here = count[w][threadIdx.x];
    count[w][threadIdx.x] = place;
    place += here;
  }
  __syncthreads();
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x * TILE + warp * WARP_PAIRS;
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) {
    int i = first + r * 32 + lane;
    if (i >= n) continue;
    u32 to = count[warp][key[r] >> shift & (BINS - 1)] + rank[r];
    keys_out[to] = key[r];
    positions_out[to] = positions[i];
  }
}

// sort_starts sets starts[v], for v ≤ limit, to the number of sorted keys below v.
KERNEL sort_starts(const u32 *keys, u32 *starts, int n, i64 limit) {
  i64 v = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (v > limit) return;
  int lo = 0, hi = n;
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;
    if (keys[mid] < v)
      lo = mid + 1;
    else
      hi = mid;
  }
  starts[v] = lo;
}

// embedding_grad sets row v of the table to the sum of the rows of dy at its positions, in their order, or adds that.
template <typename T>
DEVICE void embedding_grad(const T *dy, const u32 *positions, const u32 *starts, T *table,
                              i64 vocabulary, int cols, int accumulate) {
  typedef Wide<T> A;
  constexpr int K = CHUNK<T>, AT_ONCE = 4;
  i64 v = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  if (v >= vocabulary) return;
  u32 first = starts[v], end = starts[v + 1];
  if (first == end && accumulate) return;
  T *row = table + v * cols;
  bool out = aligned16(row);
  // all rows of dy are as aligned as the first where a row is a multiple of 16 bytes
  bool in = aligned16(dy) && cols % K == 0;
  for (int c = threadIdx.x; c < chunks_of(cols, K); c += blockDim.x) {
    A x[AT_ONCE][K], sum[K];
    if (end - first == 1) {
      load_chunk(sum, dy + (i64)positions[first] * cols, c, cols, in, (A)0);
    } else {
      f64 s[K];
#pragma unroll
      for (int i = 0; i < K; i++) s[i] = 0;
      u32 p = first;
      for (; p + AT_ONCE <= end; p += AT_ONCE) {
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) load_chunk(x[k], dy + (i64)positions[p + k] * cols, c, cols, in, (A)0);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
          for (int i = 0; i < K; i++) s[i] += (f64)x[k][i];
      }
      for (; p < end; p++) {
        load_chunk(x[0], dy + (i64)positions[p] * cols, c, cols, in, (A)0);
#pragma unroll
        for (int i = 0; i < K; i++) s[i] += (f64)x[0][i];
      }
#pragma unroll
      for (int i = 0; i < K; i++) sum[i] = (A)s[i];
    }
    if (accumulate) {
      load_chunk(x[0], row, c, cols, out, (A)0);
#pragma unroll
      for (int i = 0; i < K; i++) sum[i] = x[0][i] + sum[i];
    }
    store_chunk(row, c, cols, out, sum);
  }
}

// Lines is how gather and scatter-add walk: the shape of the index, which lies in row-major order, and the strides of
// the data, which the index has at dim, and of the values, which have the index's shape.
struct Lines {
  i64 shape[6], data[6], values[6];
  i64 n;  // elements of the index
  i64 limit;
  int dims, dim;
};

// element_of finds where element i lies in values, and in data apart from dim.
template <typename I> DEVICE void element_of(const Lines &g, I i, i64 &data, i64 &values) {
  data = values = 0;
#pragma unroll
  for (int k = 5; k >= 0; k--) {
    if (k >= g.dims) continue;
    I size = (I)g.shape[k], next = i / size, at = i - next * size;
    i = next;
    values += (i64)at * g.values[k];
    if (k != g.dim) data += (i64)at * g.data[k];
  }
}

template <typename U>
DEVICE void gather(const U *x, Indices ids, U *out, const Lines &g, FaultBlock *block, u32 op) {
  i64 step = (i64)gridDim.x * blockDim.x;
  Range range{g.limit, 0, 0};
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < g.n; i += step) {
    i64 from, to, k = ids[i];
    if (g.n <= 0xffffffffu)
      element_of<u32>(g, (u32)i, from, to);
    else
      element_of<i64>(g, i, from, to);
    if (range.bad(k)) {
      index_fault(block, op, ids, range);
      out[to] = 0;
      continue;
    }
    i64 stride = 0;
#pragma unroll
    for (int d = 0; d < 6; d++)
      if (d == g.dim) stride = g.data[d];
    out[to] = x[from + k * stride];
  }
}

DEVICE f32 added(f32 a, f32 b) { return a + b; }
DEVICE f64 added(f64 a, f64 b) { return a + b; }
DEVICE i32 added(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
DEVICE i64 added(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }

// scatter_add adds along dim, a thread a line: lines do not meet. The line's index, values and data lie step, and the
// strides, apart. Halves are rounded after each addition, so a line of theirs must not be longer than 1.
template <typename T>
DEVICE void scatter_add(const T *src, Indices ids, T *out, const Lines &g, i64 length, i64 step, i64 src_stride,
                        i64 out_stride, FaultBlock *block, u32 op) {
  Range range{g.limit, 0, 0};
  for (i64 line = thread_index(); line < g.n; line += thread_count()) {
    i64 to, from;
    element_of<i64>(g, line, to, from);
    i64 first = line / step * step * length + line % step;
    for (i64 j = 0; j < length; j++) {
      i64 k = ids[first + j * step];
      if (range.bad(k)) {
        index_fault(block, op, ids, range);
        continue;
      }
      T *p = out + to + k * out_stride;
      *p = narrow<T>(added(widen(*p), widen(src[from + j * src_stride])));
    }
  }
}

// scatter_keys makes keys of where in data the elements of the index point to, for the sort. A bad index is a fault,
// and has the key limit, beyond all.
KERNEL scatter_keys(const void *ids, int wide, u32 *keys, u32 *positions, Lines g, i64 out_stride, u32 limit,
                    FaultBlock *block, u32 op) {
  Indices x{ids, wide};
  Range range{g.limit, 0, 0};
  for (i64 i = thread_index(); i < g.n; i += thread_count()) {
    i64 to, from, k = x[i];
    element_of<u32>(g, (u32)i, to, from);
    u32 key = (u32)(to + k * out_stride);
    if (range.bad(k)) {
      index_fault(block, op, x, range);
      key = limit;
    }
    keys[i] = key;
    positions[i] = (u32)i;
  }
}

// scatter_runs adds what has one key, in order: the thread of the first does.
template <typename T>
DEVICE void scatter_runs(const T *src, const u32 *keys, const u32 *positions, T *out, const Lines &g, u32 limit) {
  for (i64 i = thread_index(); i < g.n; i += thread_count()) {
    u32 key = keys[i];
    if (key == limit || (i > 0 && keys[i - 1] == key)) continue;
    Wide<T> sum = widen(out[key]);
    for (i64 j = i; j < g.n && keys[j] == key; j++) {
      i64 to, from;
      element_of<u32>(g, positions[j], to, from);
      sum = added(sum, widen(src[from]));
    }
    out[key] = narrow<T>(sum);
  }
}

#define FLOATS(S, T)                                                                                                  \
  KERNEL embedding_grad_##S(const T *dy, const u32 *positions, const u32 *starts,                                     \
                                                T *table, i64 vocabulary, int cols, int accumulate) {                 \
    embedding_grad<T>(dy, positions, starts, table, vocabulary, cols, accumulate);                                    \
  }

FLOATS(f32, f32)
FLOATS(f64, f64)
FLOATS(bf16, bf16)
FLOATS(f16, f16)

#define GATHER(S, U)                                                                                                  \
  KERNEL gather_##S(const U *x, const void *ids, int wide, U *out, Lines g,                                           \
                                        FaultBlock *block, u32 op) {                                                  \
    gather<U>(x, Indices{ids, wide}, out, g, block, op);                                                              \
  }

GATHER(1, u8)
GATHER(2, u16)
GATHER(4, u32)
GATHER(8, u64)

#define SCATTER(S, T)                                                                                                 \
  KERNEL scatter_add_##S(const T *src, const void *ids, int wide, T *out, Lines g, i64 length, i64 step,              \
                         i64 src_stride, i64 out_stride, FaultBlock *block, u32 op) {                                 \
    scatter_add<T>(src, Indices{ids, wide}, out, g, length, step, src_stride, out_stride, block, op);                 \
  }                                                                                                                   \
  KERNEL scatter_runs_##S(const T *src, const u32 *keys, const u32 *positions, T *out, Lines g, u32 limit) {          \
    scatter_runs<T>(src, keys, positions, out, g, limit);                                                             \
  }

SCATTER(f32, f32)
SCATTER(f64, f64)
SCATTER(bf16, bf16)
SCATTER(f16, f16)
SCATTER(i32, i32)
SCATTER(i64, i64)
