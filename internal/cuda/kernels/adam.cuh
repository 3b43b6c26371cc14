// SPDX-License-Identifier: Apache-2.0

// The arithmetic of Adam: see adam.cu.

#pragma once
#include "lockstep.cuh"

// Adam are the numbers of a step in the type that it computes in: β₁, 1−β₁, β₂, 1−β₂, 1/c₁, 1/c₂, ε; for AdamW also the
// gradient's factor, 1 − lr·decay, and −lr.
template <class W> struct Adam { W b1, a1, b2, a2, r1, r2, eps, clip, keep, rate; };

template <class W> DEVICE W direction(const Adam<W> &a, W &m, W &v, W g) {
  m = a.b1 * m + a.a1 * g;
  v = a.b2 * v + a.a2 * (g * g);
  return m * a.r1 / (sqrt(v * a.r2) + a.eps);
}

// In float32 the passes one after the other begin and end with OpAffine, which adds 0: −0 becomes 0.
DEVICE f32 affine(f32 a, f32 x) { return a * x + 0.0f; }
DEVICE f64 affine(f64 a, f64 x) { return a * x; }

template <class T, class W> DEVICE void step(const Adam<W> &a, T &p, T &m, T &v, T g) {
  W wm = widen(m), wv = widen(v);
  W u = direction(a, wm, wv, affine(a.clip, (W)widen(g)));
  p = narrow<T>(affine(a.keep, (W)widen(p)) + a.rate * u);
  m = narrow<T>(wm);
  v = narrow<T>(wv);
}
