// SPDX-License-Identifier: Apache-2.0

// What moves, converts and writes elements: OpCopy, OpWhere, OpFill, OpArange.

#include "dims.cuh"
#include "many.cuh"

// Moves are by size, whatever the dtype. The host takes the largest unit that all operands allow.
typedef uint4 b128;
typedef u8 b1;
typedef u16 b2;
typedef u32 b4;
typedef u64 b8x;

#define MOVE(BYTES, T)                                                                       \
  KERNEL move_##BYTES(const __grid_constant__ Dims d, T *out, const T *x, const f64 *flag) { \
    if (skipped(flag)) return;                                                               \
    for (u64 i = thread_index(); i < d.n; i += thread_count()) {                             \
      i64 at[2];                                                                             \
      offsets(d, (u32)i, at);                                                                \
      out[at[0]] = x[at[1]];                                                                 \
    }                                                                                        \
  }
MOVE(1, b1)
MOVE(2, b2)
MOVE(4, b4)
MOVE(8, b8x)
MOVE(16, b128)

// transpose copies `planes` matrices of rows × cols, whose elements lie `step` apart along rows in the input and along
// columns in the output, by way of tiles of 32 × 32 in shared memory: both sides are read and written in whole lines.
// A block has 32 × 8 threads. stride is from plane to plane; row and col are those of the other dim.
struct Transpose {
  u32 rows, cols;           // of the output; the input walks its rows innermost
  i64 in_col, out_row;      // elements from column to column of the input, from row to row of the output
  i64 in_plane, out_plane;  // elements from plane to plane
};

template <class T> DEVICE void transpose(const Transpose &p, T *out, const T *x) {
  __shared__ T tile[32][33];
  x += blockIdx.z * p.in_plane;
  out += blockIdx.z * p.out_plane;
  u32 row = blockIdx.y * 32, col = blockIdx.x * 32;
#pragma unroll
  for (u32 k = threadIdx.y; k < 32; k += 8)
    if (col + k < p.cols && row + threadIdx.x < p.rows)
      tile[k][threadIdx.x] = x[(col + k) * p.in_col + row + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (u32 k = threadIdx.y; k < 32; k += 8)
    if (row + k < p.rows && col + threadIdx.x < p.cols)
      out[(row + k) * p.out_row + col + threadIdx.x] = tile[threadIdx.x][k];
}

#define TRANSPOSE(BYTES, T) \
  KERNEL transpose_##BYTES(const __grid_constant__ Transpose p, T *out, const T *x) { transpose(p, out, x); }
TRANSPOSE(1, b1)
TRANSPOSE(2, b2)
TRANSPOSE(4, b4)
TRANSPOSE(8, b8x)

// where: out = condition ? yes : no.
#define WHERE(BYTES, T)                                                                                             \
  KERNEL where_##BYTES(const __grid_constant__ Dims d, T *out, const u8 *condition, const T *yes, const T *no) {    \
    for (u64 i = thread_index(); i < d.n; i += thread_count()) {                                                    \
      i64 at[4];                                                                                                    \
      offsets(d, (u32)i, at);                                                                                       \
      T u = yes[at[2]], v = no[at[3]];                                                                              \
      out[at[0]] = condition[at[1]] != 0 ? u : v;                                                                   \
    }                                                                                                               \
  }
WHERE(1, b1)
WHERE(2, b2)
WHERE(4, b4)
WHERE(8, b8x)

#define FILL(BYTES, T)                                                            \
  KERNEL fill_##BYTES(const __grid_constant__ Dims d, T *out, u64 bits, const f64 *flag) { \
    if (skipped(flag)) return;                                                    \
    for (u64 i = thread_index(); i < d.n; i += thread_count()) {                  \
      i64 at[1];                                                                  \
      offsets(d, (u32)i, at);                                                     \
      out[at[0]] = (T)bits;                                                       \
    }                                                                             \
  }
FILL(1, b1)
FILL(2, b2)
FILL(4, b4)
FILL(8, b8x)

// fill_many repeats eight bytes over contiguous memory that is aligned to 16. Sizes are in bytes.
KERNEL fill_many(const __grid_constant__ List<1> list, u64 bits, const f64 *flag) {
  if (skipped(flag)) return;
  uint4 v = make_uint4((u32)bits, (u32)(bits >> 32), (u32)bits, (u32)(bits >> 32));
  for (u32 chunk = blockIdx.x; chunk < list.first[list.count]; chunk += gridDim.x) {
    Part p = part_of(list, chunk);
    u8 *out = (u8 *)list.at[0][p.i] + p.begin;
    for (u64 i = threadIdx.x; i < p.n / 16; i += blockDim.x) ((uint4 *)out)[i] = v;
    u64 i = p.n / 16 * 16 + threadIdx.x;
    if (i < p.n) out[i] = (u8)(bits >> (i % 8 * 8));
  }
}

// copy_many copies contiguous memory that is aligned to 16. Sizes are in bytes.
KERNEL copy_many(const __grid_constant__ List<2> list, const f64 *flag) {
  if (skipped(flag)) return;
  for (u32 chunk = blockIdx.x; chunk < list.first[list.count]; chunk += gridDim.x) {
    Part p = part_of(list, chunk);
    u8 *out = (u8 *)list.at[0][p.i] + p.begin;
    const u8 *x = (const u8 *)list.at[1][p.i] + p.begin;
    for (u64 i = threadIdx.x; i < p.n / 16; i += blockDim.x) ((uint4 *)out)[i] = ((const uint4 *)x)[i];
    u64 i = p.n / 16 * 16 + threadIdx.x;
    if (i < p.n) out[i] = x[i];
  }
}

// convert is the conversion of OpCopy. Half types go through float32.
template <class D, class S> struct Convert {
  DEVICE D of(S x) { return narrow<D>((Wide<D>)widen(x)); }
};

// cut goes toward zero and stops at the borders lo and hi; a NaN gives 0.
template <class D> DEVICE D cut(f64 x, D lo, D hi) {
  if (x != x) return 0;
  if (x <= (f64)lo) return lo;
  if (x >= (f64)hi) return hi;
  return (D)(i64)x;
}
const i32 MIN_I32 = -0x7FFFFFFF - 1, MAX_I32 = 0x7FFFFFFF;
const i64 MIN_I64 = -0x7FFFFFFFFFFFFFFFll - 1, MAX_I64 = 0x7FFFFFFFFFFFFFFFll;

#define CUT(S)                                                                                       \
  template <> struct Convert<i32, S> {                                                               \
    DEVICE i32 of(S x) { return cut<i32>((f64)widen(x), MIN_I32, MAX_I32); }                         \
  };                                                                                                 \
  template <> struct Convert<i64, S> {                                                               \
    DEVICE i64 of(S x) { return cut<i64>((f64)widen(x), MIN_I64, MAX_I64); }                         \
  };                                                                                                 \
  template <> struct Convert<u8, S> {                                                                \
    DEVICE u8 of(S x) { return cut<u8>((f64)widen(x), 0, 255); }                                     \
  };
CUT(f32)
CUT(f64)
CUT(bf16)
CUT(f16)
template <class S> struct Convert<b8, S> {
  DEVICE b8 of(S x) { return b8{(u8)(widen(x) != 0)}; }
};

#define CAST(S, D)                                                                                         \
  KERNEL cast_##S##_##D(const __grid_constant__ Dims d, D *out, const S *x, const f64 *flag) {             \
    if (skipped(flag)) return;                                                                             \
    for (u64 i = thread_index(); i < d.n; i += thread_count()) {                                           \
      i64 at[2];                                                                                           \
      offsets(d, (u32)i, at);                                                                              \
      out[at[0]] = Convert<D, S>::of(x[at[1]]);                                                            \
    }                                                                                                      \
  }
// Between any two dtypes; from one to itself elements are moved.
CAST(f32, f64) CAST(f32, bf16) CAST(f32, f16) CAST(f32, i32) CAST(f32, i64) CAST(f32, u8) CAST(f32, b8)
CAST(f64, f32) CAST(f64, bf16) CAST(f64, f16) CAST(f64, i32) CAST(f64, i64) CAST(f64, u8) CAST(f64, b8)
CAST(bf16, f32) CAST(bf16, f64) CAST(bf16, f16) CAST(bf16, i32) CAST(bf16, i64) CAST(bf16, u8) CAST(bf16, b8)
CAST(f16, f32) CAST(f16, f64) CAST(f16, bf16) CAST(f16, i32) CAST(f16, i64) CAST(f16, u8) CAST(f16, b8)
CAST(i32, f32) CAST(i32, f64) CAST(i32, bf16) CAST(i32, f16) CAST(i32, i64) CAST(i32, u8) CAST(i32, b8)
CAST(i64, f32) CAST(i64, f64) CAST(i64, bf16) CAST(i64, f16) CAST(i64, i32) CAST(i64, u8) CAST(i64, b8)
CAST(u8, f32) CAST(u8, f64) CAST(u8, bf16) CAST(u8, f16) CAST(u8, i32) CAST(u8, i64) CAST(u8, b8)
CAST(b8, f32) CAST(b8, f64) CAST(b8, bf16) CAST(b8, f16) CAST(b8, i32) CAST(b8, i64) CAST(b8, u8)

// The conversions of mixed precision, of contiguous and aligned operands, eight elements at a time.
template <class D, class S> DEVICE void cast_many(const List<2> &list) {
  for (u32 chunk = blockIdx.x; chunk < list.first[list.count]; chunk += gridDim.x) {
    Part p = part_of(list, chunk);
    D *out = (D *)list.at[0][p.i] + p.begin;
    const S *x = (const S *)list.at[1][p.i] + p.begin;
    for (u64 i = threadIdx.x; i < p.n / 8; i += blockDim.x) {
      Vec<S, 8> v = load<8>(x + i * 8);
      Vec<D, 8> w;
#pragma unroll
      for (int k = 0; k < 8; k++) w.v[k] = Convert<D, S>::of(v.v[k]);
      store(out + i * 8, w);
    }
    u64 i = p.n / 8 * 8 + threadIdx.x;
    if (i < p.n) out[i] = Convert<D, S>::of(x[i]);
  }
}
#define CAST_MANY(S, D)                                                                          \
  KERNEL cast_many_##S##_##D(const __grid_constant__ List<2> list, const f64 *flag) {            \
    if (!skipped(flag)) cast_many<D, S>(list);                                                   \
  }
CAST_MANY(f32, bf16)
CAST_MANY(bf16, f32)
CAST_MANY(f32, f16)
CAST_MANY(f16, f32)

template <class T, class A> DEVICE void arange(T *out, i64 stride, u64 n, A start, A step) {
  for (u64 i = thread_index(); i < n; i += thread_count())
    out[(i64)i * stride] = narrow<T>((Wide<T>)(start + (A)(i64)i * step));
}
#define ARANGE(T, A) \
  KERNEL arange_##T(T *out, i64 stride, u64 n, A start, A step) { arange(out, stride, n, start, step); }
ARANGE(f32, f64)
ARANGE(f64, f64)
ARANGE(bf16, f64)
ARANGE(f16, f64)
ARANGE(i32, i64)
ARANGE(i64, i64)
ARANGE(u8, i64)
