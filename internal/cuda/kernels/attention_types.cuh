// SPDX-License-Identifier: Apache-2.0

// The numbers that attention stores and those that it computes with.
#pragma once

struct half_t { unsigned short bits; };  // float16
struct brain_t { unsigned short bits; }; // bfloat16

template <class T> struct Number;
template <> struct Number<float> { typedef float Wide; typedef double Sum; };
template <> struct Number<double> { typedef double Wide; typedef double Sum; };
template <> struct Number<half_t> { typedef float Wide; typedef float Sum; };
template <> struct Number<brain_t> { typedef float Wide; typedef float Sum; };

static __device__ __forceinline__ float widen(float x) { return x; }
static __device__ __forceinline__ double widen(double x) { return x; }
static __device__ __forceinline__ float widen(brain_t x) { return __uint_as_float((unsigned int)x.bits << 16); }
static __device__ __forceinline__ float widen(half_t x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

static __device__ __forceinline__ void round(float &y, float x) { y = x; }
static __device__ __forceinline__ void round(double &y, double x) { y = x; }
static __device__ __forceinline__ void round(brain_t &y, float x) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}
static __device__ __forceinline__ void round(half_t &y, float x) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}

static __device__ __forceinline__ float exponential(float x) { return expf(x); }
static __device__ __forceinline__ double exponential(double x) { return exp(x); }
static __device__ __forceinline__ float multiplyAdd(float a, float b, float c) { return fmaf(a, b, c); }
static __device__ __forceinline__ double multiplyAdd(double a, double b, double c) { return fma(a, b, c); }
static __device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
static __device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

template <class T> static __device__ __forceinline__ T infinity();
template <> __device__ __forceinline__ float infinity<float>() { return __uint_as_float(0x7f800000u); }
template <> __device__ __forceinline__ double infinity<double>() {
    return __longlong_as_double(0x7ff0000000000000ll);
}
