// SPDX-License-Identifier: Apache-2.0

// What all kernels of attention share: operands, which keys a query sees, dropout.
#pragma once

#include "lockstep.cuh"

// Sum is the type that sums of many T are added up in.
template <class T> struct SumOf { typedef Wide<T> type; };
template <> struct SumOf<f32> { typedef f64 type; };
template <class T> using Sum = typename SumOf<T>::type;

// AttentionArgs is the geometry of OpAttention and OpAttentionGrad (internal/backend/op.go). The launcher packs it field
// by field. Strides count elements and are those of batch, head and row; the last dim has stride 1.
struct AttentionArgs {
  const void *q, *k, *v, *mask;
  void *out; // of the forward pass; of the gradient, its input
  void *lse; // of q's row statistics: float, double for double
  const void *dout;
  void *delta; // likewise
  void *dq, *dk, *dv, *dbias;
  void *keep; // dropout's decisions, of flash.cuh alone
  i64 qs[3], ks[3], vs[3], os[3], dos[3], dqs[3], dks[3], dvs[3], ms[4];
  u64 key, position; // of dropout; position of sample 0
  double scale, keepScale;          // keepScale is 1/(1−p), 0 for p = 1
  int batch, heads, kvHeads, tq, tk, d, dvalue;
  int lower, upper;       // query i sees key j if i+lower ≤ j < i+upper
  int maskKind;           // 0 none, 1 bool, 2 of q's dtype
  int first;              // the first head of keys of flash.cuh's launch, all samples' counted
  u32 threshold; // an element is kept if its upper 24 random bits are at least this; 0: no dropout
};

DEVICE int lesser(int a, int b) { return a < b ? a : b; }
DEVICE int greater(int a, int b) { return a > b ? a : b; }

// firstKey and endKey bound the keys that queries i0 ≤ i < i1 see, but for the mask.
DEVICE int firstKey(const AttentionArgs &a, int i0) {
  return greater(0, lesser(a.tk, i0 + a.lower));
}
DEVICE int endKey(const AttentionArgs &a, int i1) {
  return greater(0, lesser(a.tk, i1 - 1 + a.upper));
}

// firstQuery and endQuery bound the queries that see one of the keys j0 ≤ j < j1.
DEVICE int firstQuery(const AttentionArgs &a, int j0) {
  return greater(0, lesser(a.tq, j0 - a.upper + 1));
}
DEVICE int endQuery(const AttentionArgs &a, int j1) {
  return greater(0, lesser(a.tq, j1 - a.lower));
}

DEVICE bool visible(const AttentionArgs &a, int i, int j) {
  return j < a.tk && j >= i + a.lower && j < i + a.upper;
}

// elementOf is dropout's element of query i of head h, and key 0.
DEVICE u64 elementOf(const AttentionArgs &a, int h, int i) {
  return ((u64)h * (u32)a.tq + (u32)i) * (u32)a.tk;
}
