// SPDX-License-Identifier: Apache-2.0

// What all kernels share: names of types, conversions, vectors for wide loads, faults, and random numbers.
//
// Half types are structs, so that no arithmetic on them compiles: it is done in float32 and rounded once. Arithmetic is
// compiled without contraction (-fmad=false); where a fused product is wanted, fma stands in the source.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct b8 { u8 bits; };  // bool: 0 or 1

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__
#define MEMBER __device__ __forceinline__ // of an object

// Wide is the type that T computes in.
template <class T> struct WideOf { typedef T type; };
template <> struct WideOf<bf16> { typedef f32 type; };
template <> struct WideOf<f16> { typedef f32 type; };
template <class T> using Wide = typename WideOf<T>::type;

// widen is exact.
DEVICE f32 widen(f32 x) { return x; }
DEVICE f64 widen(f64 x) { return x; }
DEVICE i32 widen(i32 x) { return x; }
DEVICE i64 widen(i64 x) { return x; }
DEVICE u8 widen(u8 x) { return x; }
DEVICE u8 widen(b8 x) { return x.bits; }
DEVICE f32 widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE f32 widen(f16 x) {
  f32 y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

// narrow<T> rounds to the nearest T, ties to even.
template <class T> struct Narrow {
  DEVICE T of(T x) { return x; }
};
template <> struct Narrow<bf16> {
  DEVICE bf16 of(f32 x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
};
template <> struct Narrow<f16> {
  DEVICE f16 of(f32 x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
};
template <class T> DEVICE T narrow(Wide<T> x) { return Narrow<T>::of(x); }

// Vec is N elements that are loaded and stored at once, up to 16 bytes by one instruction.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec { T v[N]; };

template <int N, class T> DEVICE Vec<T, N> load(const T *p) { return *(const Vec<T, N> *)p; }
template <int N, class T> DEVICE void store(T *p, const Vec<T, N> &v) { *(Vec<T, N> *)p = v; }

// FaultBlock is where a stream's kernels put the first fault that the host has not seen. The host reads it at its next
// wait.
struct FaultBlock {
  u32 state;  // 0: none
  u32 op;     // backend.Op
  i64 value;  // as an index
  i64 limit;  // what the value had to be below
  i64 where;  // element of the operand
};

// fault records a fault unless there is one.
DEVICE void fault(FaultBlock *block, u32 op, i64 value, i64 limit, i64 where) {
  if (atomicCAS(&block->state, 0u, 1u) != 0u) return;
  block->op = op;
  block->value = value;
  block->limit = limit;
  block->where = where;
}

// Philox4x32 with ten rounds (Salmon et al. 2011), as internal/rng: block number `block` of the numbers at (key,
// position).
DEVICE uint4 philox(u64 key, u64 position, u64 block) {
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
  u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = (u32)position, c3 = (u32)(position >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}

// word is one of the block's four words.
DEVICE u32 word(uint4 b, u32 i) {
  u32 low = i & 1 ? b.y : b.x, high = i & 1 ? b.w : b.z;
  return i & 2 ? high : low;
}

// uint32_at is rng.Uint32At.
DEVICE u32 uint32_at(u64 key, u64 position, u64 element) {
  return word(philox(key, position, element >> 2), (u32)element & 3);
}

// unit32 and unit64 are rng's: [0, 1) by the upper 24 or 53 bits.
DEVICE f32 unit32(u32 x) { return (f32)(x >> 8) * 0x1p-24f; }
DEVICE f64 unit64(u32 low, u32 high) { return (f64)(i64)(((u64)high << 32 | low) >> 11) * 0x1p-53; }

// skipped reports whether a conditional kernel does nothing: there is a flag, and it is 0.
DEVICE bool skipped(const f64 *flag) { return flag != nullptr && *flag == 0; }

// Index of the thread in the grid, and number of threads, for grid-stride loops.
DEVICE u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

// warp_sum adds the lanes at a distance of 16, 8, 4, 2 and 1; every lane gets the sum.
template <class T> DEVICE T warp_sum(T x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}
