// SPDX-License-Identifier: Apache-2.0

// Reductions over any set of dims of a strided view. The elements of one output are numbered in row-major order of the
// dims that go, and cut into parts; their size and the number of threads follow from the shape alone, and so does the
// order:
//
//   NAME_DTYPE_each   a thread takes a part, element by element; for few elements, or where neighbours are kept
//   NAME_DTYPE_block  a block takes a part: thread t elements t, t+T, … of its T threads, then the threads as a tree
//   NAME_DTYPE_parts  a warp adds up the parts of an output
//
// With one part the first two write the output. A reduction R has a state, which starts as R::none(), takes elements,
// and joins that of later elements.

#pragma once
#include "dims.cuh"
#include "many.cuh"

// Reduction is the geometry: the dims that stay, with the strides of the input (operand 0) and of the output (operand
// 1), and those that go.
struct Reduction {
  Dims kept, gone;
  u32 parts;     // of an output
  u32 part;      // elements of a part
  i64 first;     // output that the launch begins with, in the scratch
};

template <class S> DEVICE S shuffled(S x, int distance) {
  constexpr int WORDS = sizeof(S) / 4;
  union { S s; u32 w[WORDS]; } from = {x}, to = {x};
#pragma unroll
  for (int i = 0; i < WORDS; i++) to.w[i] = __shfl_down_sync(0xffffffffu, from.w[i], distance);
  return to.s;
}

template <class R> DEVICE typename R::State in_warp(typename R::State x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = R::join(x, shuffled(x, d));
  return x;
}

// write puts a state where it belongs: to the output, or among the parts.
template <class R>
DEVICE void write(const Reduction &r, typename R::Out *out, typename R::State *parts, u32 output, u32 part,
                  typename R::State x) {
  if (r.parts > 1) {
    parts[(r.first + output) * r.parts + part] = x;
    return;
  }
  i64 at[2];
  offsets(r.kept, output, at);
  out[at[1]] = R::result(x);
}

// taken takes every step-th element from i to end of those that go.
template <class R>
DEVICE typename R::State taken(const Dims &gone, const typename R::In *x, u32 i, u32 end, u32 step) {
  typename R::State s = R::none();
  if (gone.nd == 1) {
    i64 stride = gone.stride[0][0];
#pragma unroll 4
    for (; i < end; i += step) s = R::take(s, x[i * stride], i);
    return s;
  }
#pragma unroll 1
  for (; i < end; i += step) {
    i64 at[1];
    offsets(gone, i, at);
    s = R::take(s, x[at[0]], i);
  }
  return s;
}

template <class R>
DEVICE void reduce_each(const Reduction &r, typename R::Out *out, typename R::State *parts, const typename R::In *x) {
  u64 units = (u64)r.kept.n * r.parts;
  for (u64 u = thread_index(); u < units; u += thread_count()) {
    u32 part = (u32)(u / r.kept.n), output = (u32)(u - (u64)part * r.kept.n);
    i64 at[2];
    offsets(r.kept, output, at);
    u32 first = part * r.part, end = min(r.gone.n, first + r.part);
    write<R>(r, out, parts, output, part, taken<R>(r.gone, x + at[0], first, end, 1));
  }
}

template <class R>
DEVICE void reduce_block(const Reduction &r, typename R::Out *out, typename R::State *parts, const typename R::In *x) {
  __shared__ typename R::State warps[32];
  u32 part = blockIdx.y;
  for (u32 output = blockIdx.x; output < r.kept.n; output += gridDim.x) {
    i64 at[2];
    offsets(r.kept, output, at);
    u32 first = part * r.part, end = min(r.gone.n, first + r.part);
    typename R::State s = in_warp<R>(taken<R>(r.gone, x + at[0], first + threadIdx.x, end, blockDim.x));
    if (blockDim.x > 32) {
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = s;
      __syncthreads();
      if (threadIdx.x < 32) s = in_warp<R>(threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : R::none());
      __syncthreads();
    }
    if (threadIdx.x == 0) write<R>(r, out, parts, output, part, s);
  }
}

template <class R>
DEVICE void reduce_parts(const Reduction &r, typename R::Out *out, const typename R::State *parts) {
  u32 lane = threadIdx.x % 32;
  for (u64 output = thread_index() / 32; output < r.kept.n; output += thread_count() / 32) {
    const typename R::State *p = parts + (r.first + output) * r.parts;
    typename R::State s = R::none();
    for (u32 i = lane; i < r.parts; i += 32) s = R::join(s, p[i]);
    s = in_warp<R>(s);
    if (lane == 0) {
      i64 at[2];
      offsets(r.kept, (u32)output, at);
      out[at[1]] = R::result(s);
    }
  }
}

// Sum adds floats in float64 and integers in int64.
template <class T> struct SumOf { typedef f64 type; };
template <> struct SumOf<i32> { typedef i64 type; };
template <> struct SumOf<i64> { typedef i64 type; };

template <class T, class O = T> struct Sum {
  typedef T In;
  typedef O Out;
  typedef typename SumOf<T>::type State;
  DEVICE State none() { return 0; }
  DEVICE State take(State s, T x, u32) { return s + (State)widen(x); }
  DEVICE State join(State s, State t) { return s + t; }
  DEVICE O result(State s) { return narrow<O>((Wide<O>)s); }
};

// The least number of a dtype; it loses against all.
template <class W> struct Least;
template <> struct Least<f32> { DEVICE f32 of() { return __int_as_float(0xff800000); } };
template <> struct Least<f64> { DEVICE f64 of() { return __longlong_as_double(0xfff0000000000000ll); } };
template <> struct Least<i32> { DEVICE i32 of() { return -0x7fffffff - 1; } };
template <> struct Least<i64> { DEVICE i64 of() { return -0x7fffffffffffffffll - 1; } };

// reverse turns the order of all numbers but NaN around.
DEVICE f32 reverse(f32 x) { return -x; }
DEVICE f64 reverse(f64 x) { return -x; }
DEVICE i32 reverse(i32 x) { return ~x; }
DEVICE i64 reverse(i64 x) { return ~x; }

DEVICE bool negative(f32 x) { return __float_as_int(x) < 0; }
DEVICE bool negative(f64 x) { return __double_as_longlong(x) < 0; }
DEVICE bool negative(i32 x) { return x < 0; }
DEVICE bool negative(i64 x) { return x < 0; }

// beats reports whether y replaces x as the maximum: it is larger, or the first NaN.
template <class W> DEVICE bool beats(W y, W x) { return y > x || (y != y && x == x); }

// Max and Min: a NaN wins, and 0 is larger than −0.
template <class T, bool MIN> struct Extreme {
  typedef T In;
  typedef T Out;
  typedef Wide<T> State;
  DEVICE State none() { return Least<State>::of(); }
  DEVICE State take(State s, T x, u32) {
    State y = widen(x);
    return join(s, MIN ? reverse(y) : y);
  }
  DEVICE State join(State s, State t) { return beats(t, s) || (t == s && negative(s)) ? t : s; }
  DEVICE T result(State s) { return narrow<T>(MIN ? reverse(s) : s); }
};

// ArgMax and ArgMin: the first of the largest, or the first NaN.
template <class W> struct Found {
  W value;
  i32 at;
  u32 any;
};
template <class T, bool MIN> struct ArgExtreme {
  typedef T In;
  typedef i64 Out;
  typedef Found<Wide<T>> State;
  DEVICE State none() { return {Least<Wide<T>>::of(), 0, 0}; }
  DEVICE State take(State s, T x, u32 i) {
    Wide<T> y = widen(x);
    return join(s, {MIN ? reverse(y) : y, (i32)i, 1});
  }
  DEVICE State join(State s, State t) {
    if (!s.any || !t.any) return s.any ? s : t;
    if (beats(t.value, s.value)) return t;
    if (beats(s.value, t.value)) return s;
    return t.at < s.at ? t : s;
  }
  DEVICE i64 result(State s) { return s.at; }
};

#define REDUCE(NAME, R, T)                                                                                       \
  KERNEL NAME##_##T##_each(const __grid_constant__ Reduction r, R::Out *out, R::State *parts, const T *x) {      \
    reduce_each<R>(r, out, parts, x);                                                                            \
  }                                                                                                              \
  KERNEL NAME##_##T##_block(const __grid_constant__ Reduction r, R::Out *out, R::State *parts, const T *x) {     \
    reduce_block<R>(r, out, parts, x);                                                                           \
  }                                                                                                              \
  KERNEL NAME##_##T##_parts(const __grid_constant__ Reduction r, R::Out *out, const R::State *parts) {           \
    reduce_parts<R>(r, out, parts);                                                                              \
  }
#define REDUCTIONS(T)                                                  \
  typedef Sum<T> Sum_##T;                                              \
  typedef Extreme<T, false> Max_##T;                                   \
  typedef Extreme<T, true> Min_##T;                                    \
  typedef ArgExtreme<T, false> ArgMax_##T;                             \
  typedef ArgExtreme<T, true> ArgMin_##T;                              \
  REDUCE(sum, Sum_##T, T)                                              \
  REDUCE(max, Max_##T, T)                                              \
  REDUCE(min, Min_##T, T)                                              \
  REDUCE(argmax, ArgMax_##T, T)                                        \
  REDUCE(argmin, ArgMin_##T, T)

// A sum of a half type that is not rounded to it.
#define SUM_WIDE(T)             \
  typedef Sum<T, f32> Wide_##T; \
  REDUCE(sum_wide, Wide_##T, T)

// sum_sq adds the squares of up to 4096 elements, in float64, by 256 threads: thread t takes elements 4t … 4t+3 of
// every 1024, and the threads are added as a tree.
template <class T> DEVICE void sum_sq(f64 *out, const T *x, u32 n, bool wide) {
  __shared__ f64 warps[8];
  f64 s = 0;
#pragma unroll
  for (u32 k = 0; k < 4; k++) {
    u32 i = k * 1024 + threadIdx.x * 4;
    Vec<T, 4> v = {};
    if (wide && i + 4 <= n) {
      v = load<4>(x + i);
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (i + j < n) v.v[j] = x[i + j];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      f64 y = (f64)widen(v.v[j]);
      s += y * y;
    }
  }
  s = warp_sum(s);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0)
    *out = ((warps[0] + warps[4]) + (warps[2] + warps[6])) + ((warps[1] + warps[5]) + (warps[3] + warps[7]));
  __syncthreads();
}

// A chunk of the list is an output.
template <class T> DEVICE void sum_sq_many(const List<2> &list) {
  for (u32 chunk = blockIdx.x; chunk < list.first[list.count]; chunk += gridDim.x) {
    Part p = part_of(list, chunk);
    sum_sq((f64 *)list.at[0][p.i] + p.begin / list.chunk, (const T *)list.at[1][p.i] + p.begin, (u32)p.n, list.wide);
  }
}
#define SUM_SQ(T) \
  KERNEL sum_sq_many_##T(const __grid_constant__ List<2> list) { sum_sq_many<T>(list); }
