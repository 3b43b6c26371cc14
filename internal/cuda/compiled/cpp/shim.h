// SPDX-License-Identifier: Apache-2.0

// What CUDA C++ has beyond C++, for kernels that are compiled for the CPU. It is included before each source.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) alignas(n)

using std::isfinite;
template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) {
  typedef std::common_type_t<A, B> T;
  return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) {
  typedef std::common_type_t<A, B> T;
  return (T)a < (T)b ? (T)b : (T)a;
}

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(8) float2 { float x, y; };
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace shim {

struct Dim { unsigned x, y, z; };

enum Wait { RUNS, FOR_BLOCK, FOR_WARP, DONE };

// Thread is a thread of the block that runs: a fibre.
struct Thread {
  ucontext_t context;  // where it begins
  jmp_buf place;       // where it waits; unlike a switch of contexts, a jump takes no call of the system
  bool begun;
  void *stack;
  Dim index;
  int lane, warp;
  Wait wait;
  bool odd;  // which of a warp's two exchanges is the next
};

// Warp is where the lanes of a warp leave words for each other, in two places by turns: a lane may begin the next
// exchange while others still read.
struct Warp { uint64_t words[2][32][6]; };

extern Thread *current;
extern std::vector<Warp> warps;
extern Dim grid, block, blockIndex;
extern char *dynamic;  // shared memory whose size a launch gives

[[noreturn]] void fail(const char *why);
void pause(Wait);

// exchange leaves n words for the warp, waits for it, and returns what all lanes have left.
static inline uint64_t (*exchange(const uint64_t *words, int n))[6] {
  Thread *t = current;
  t->odd = !t->odd;
  uint64_t(*place)[6] = warps[t->warp].words[t->odd];
  memcpy(place[t->lane], words, n * sizeof *words);
  pause(FOR_WARP);
  return place;
}

template <class T> static inline T from(T value, unsigned mask, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  if (mask != 0xffffffffu) fail("a shuffle of a part of a warp");
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  memcpy(&value, exchange(&word, 1)[lane & 31], sizeof value);
  return value;
}

template <class To, class From> static inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

// Kernel registers a kernel under its name.
struct Kernel {
  Kernel(const char *name, std::function<std::function<void()>(const char *)> bind);
};

template <class T> T take(const char *block, size_t &at) {
  at = (at + alignof(T) - 1) / alignof(T) * alignof(T);
  T value;
  memcpy((void *)&value, block + at, sizeof value);
  at += sizeof value;
  return value;
}

// kernel reads a kernel's parameters from a parameter block, each at its natural alignment.
template <class... A> std::function<std::function<void()>(const char *)> kernel(void (*f)(A...)) {
  return [f](const char *block) {
    size_t at = 0;
    std::tuple<std::remove_const_t<A>...> arguments{take<std::remove_const_t<A>>(block, at)...};
    return [f, arguments] { std::apply(f, arguments); };
  };
}

}  // namespace shim

#define threadIdx (shim::current->index)
#define blockIdx (shim::blockIndex)
#define blockDim (shim::block)
#define gridDim (shim::grid)

static inline void __syncthreads() { shim::pause(shim::FOR_BLOCK); }
static inline void __syncwarp(unsigned = 0xffffffffu) { shim::pause(shim::FOR_WARP); }

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int d) {
  return shim::from(x, mask, shim::current->lane ^ d);
}
template <class T> static inline T __shfl_sync(unsigned mask, T x, int lane) { return shim::from(x, mask, lane); }
template <class T> static inline T __shfl_up_sync(unsigned mask, T x, int d) {
  int lane = shim::current->lane;
  return shim::from(x, mask, lane < d ? lane : lane - d);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T x, int d) {
  int lane = shim::current->lane;
  return shim::from(x, mask, lane + d > 31 ? lane : lane + d);
}
static inline unsigned __ballot_sync(unsigned mask, int holds) {
  if (mask != 0xffffffffu) shim::fail("a ballot of a part of a warp");
  uint64_t word = holds != 0;
  uint64_t(*all)[6] = shim::exchange(&word, 1);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; lane++) ballot |= (unsigned)(all[lane][0] & 1) << lane;
  return ballot;
}

static inline unsigned atomicCAS(unsigned *at, unsigned compare, unsigned value) {
  unsigned old = *at;
  if (old == compare) *at = value;
  return old;
}
template <class T> static inline T atomicAdd(T *at, T value) {
  T old = *at;
  *at += value;
  return old;
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline unsigned __umulhi(unsigned x, unsigned y) { return (uint64_t)x * y >> 32; }
static inline float __uint_as_float(unsigned x) { return shim::bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return shim::bits<unsigned>(x); }
static inline float __int_as_float(int x) { return shim::bits<float>(x); }
static inline int __float_as_int(float x) { return shim::bits<int>(x); }
static inline double __longlong_as_double(long long x) { return shim::bits<double>(x); }
static inline long long __double_as_longlong(double x) { return shim::bits<long long>(x); }
static inline size_t __cvta_generic_to_shared(const void *p) { return (const char *)p - shim::dynamic; }
static inline const void *__cvta_generic_to_global(const void *p) { return p; }

// What the sources write in PTX: an instruction is a function of its operands, results first.

static inline unsigned short shim_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline unsigned short shim_f16(float x) {
  return x != x ? 0x7fff : shim::bits<unsigned short>((_Float16)x);
}
static inline float shim_widen_bf16(unsigned x) { return __uint_as_float(x << 16); }
static inline float shim_widen_f16(unsigned x) { return (float)shim::bits<_Float16>((unsigned short)x); }

static inline void cvt_f32_f16(float &y, unsigned short x) { y = shim_widen_f16(x); }
static inline void cvt_rn_bf16_f32(unsigned short &y, float x) { y = shim_bf16(x); }
static inline void cvt_rn_f16_f32(unsigned short &y, float x) { y = shim_f16(x); }
static inline void cvt_rn_bf16x2_f32(unsigned &y, float high, float low) {
  y = (unsigned)shim_bf16(high) << 16 | shim_bf16(low);
}
static inline void cvt_rn_f16x2_f32(unsigned &y, float high, float low) {
  y = (unsigned)shim_f16(high) << 16 | shim_f16(low);
}
static inline void ex2_approx_ftz_f32(float &y, float x) {
  y = exp2f(x);
  if (y < 0x1p-126f) y = 0;
}
static inline void prmt_b32(unsigned &z, unsigned x, unsigned y, unsigned selector) {
  uint64_t bytes = (uint64_t)y << 32 | x;
  z = 0;
  for (int k = 0; k < 4; k++) {
    unsigned byte = bytes >> (selector >> 4 * k & 7) * 8 & 0xff;
    if (selector >> 4 * k & 8) byte = byte >> 7 ? 0xff : 0;
    z |= byte << 8 * k;
  }
}
static inline void max_NaN_f32(float &z, float x, float y) {
  z = x != x || y != y ? NAN : x == y ? (signbit(x) ? y : x) : x > y ? x : y;
}
static inline void min_NaN_f32(float &z, float x, float y) {
  z = x != x || y != y ? NAN : x == y ? (signbit(x) ? x : y) : x < y ? x : y;
}

// Copies are done at once.
static inline void shim_copy(unsigned to, const void *from, int bytes, int read) {
  if (to % bytes || read && (uintptr_t)from % bytes) shim::fail("a copy of an operand that is not aligned");
  memset(shim::dynamic + to, 0, bytes);
  if (read) memcpy(shim::dynamic + to, from, read);
}
static inline void cp_async_cg_shared_global(unsigned to, const void *from, int read) { shim_copy(to, from, 16, read); }
static inline void cp_async_ca_shared_global(unsigned to, const void *from, int read) { shim_copy(to, from, 4, read); }
static inline void cp_async_commit_group() {}
static inline void cp_async_wait_group(int) {}

// ldmatrix, x4: lane 8m+r has the address of row r of matrix m. Of each matrix lane 4g+t gets elements 2t and 2t+1 of
// row g, or with .trans of column g.
static inline void shim_matrices(unsigned *r, unsigned at, bool transposed) {
  uint64_t word = at;
  uint64_t(*rows)[6] = shim::exchange(&word, 1);
  int g = shim::current->lane / 4, t = shim::current->lane % 4;
  for (int m = 0; m < 4; m++) {
    auto element = [&](int row, int column) {
      unsigned short x;
      memcpy(&x, shim::dynamic + rows[8 * m + row][0] + 2 * column, sizeof x);
      return (unsigned)x;
    };
    r[m] = transposed ? element(2 * t, g) | element(2 * t + 1, g) << 16
                      : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
}
static inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned &a, unsigned &b, unsigned &c, unsigned &d,
                                                            unsigned at) {
  unsigned r[4];
  shim_matrices(r, at, false);
  a = r[0], b = r[1], c = r[2], d = r[3];
}
static inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned &a, unsigned &b, unsigned &c, unsigned &d,
                                                                  unsigned at) {
  unsigned r[4];
  shim_matrices(r, at, true);
  a = r[0], b = r[1], c = r[2], d = r[3];
}

// mma.m16n8k16: element (i,k) of A is in lane 4(i%8) + (k%8)/2, register i/8 + 2(k/8), half k%2; element (k,j) of B in
// lane 4j + (k%8)/2, register k/8, half k%2; element (i,j) of C in lane 4(i%8) + j/2, register 2(i/8) + j%2.
template <class F>
static inline void shim_mma(float *c[4], const uint64_t (&operands)[6], F widen) {
  uint64_t(*all)[6] = shim::exchange(operands, 6);
  auto half = [&](int lane, int word, int k) { return widen((unsigned)(all[lane][word] >> 16 * (k % 2)) & 0xffff); };
  int g = shim::current->lane / 4, t = shim::current->lane % 4;
  for (int e = 0; e < 4; e++) {
    int i = g + 8 * (e / 2), j = 2 * t + e % 2;
    double sum = *c[e];
    for (int k = 0; k < 16; k++) {
      int lane = k % 8 / 2;
      sum += (double)half(4 * (i % 8) + lane, i / 8 + 2 * (k / 8), k) * half(4 * j + lane, 4 + k / 8, k);
    }
    *c[e] = (float)sum;
  }
}
static inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float &c0, float &c1, float &c2, float &c3,
                                                                       unsigned a0, unsigned a1, unsigned a2,
                                                                       unsigned a3, unsigned b0, unsigned b1) {
  float *c[4] = {&c0, &c1, &c2, &c3};
  shim_mma(c, {a0, a1, a2, a3, b0, b1}, shim_widen_bf16);
}
static inline void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float &c0, float &c1, float &c2, float &c3,
                                                                     unsigned a0, unsigned a1, unsigned a2,
                                                                     unsigned a3, unsigned b0, unsigned b1) {
  float *c[4] = {&c0, &c1, &c2, &c3};
  shim_mma(c, {a0, a1, a2, a3, b0, b1}, shim_widen_f16);
}
