// SPDX-License-Identifier: Apache-2.0

// What all kernels of attention share: operands, which keys a query sees, dropout.
#pragma once

#include "attention_types.cuh"

// AttentionArgs is the geometry of OpAttention and OpAttentionGrad (internal/backend/op.go). The launcher packs it field
// by field. Strides count elements and are those of batch, head and row; the last dim has stride 1.
struct AttentionArgs {
    const void *q, *k, *v, *mask;
    void *out; // of the forward pass; of the gradient, its input
    void *lse; // of q's row statistics: float, double for double
    const void *dout;
    void *delta; // likewise
    void *dq, *dk, *dv, *dbias;
    long long qs[3], ks[3], vs[3], os[3], dos[3], dqs[3], dks[3], dvs[3], ms[4];
    unsigned long long key, position; // of dropout; position of sample 0
    double scale, keepScale;          // keepScale is 1/(1−p), 0 for p = 1
    int batch, heads, kvHeads, tq, tk, d, dvalue;
    int lower, upper;       // query i sees key j if i+lower ≤ j < i+upper
    int maskKind;           // 0 none, 1 bool, 2 of q's dtype
    unsigned int threshold; // an element is kept if its upper 24 random bits are at least this; 0: no dropout
};

static __device__ __forceinline__ int lesser(int a, int b) { return a < b ? a : b; }
static __device__ __forceinline__ int greater(int a, int b) { return a > b ? a : b; }

// firstKey and endKey bound the keys that queries i0 ≤ i < i1 see, but for the mask.
static __device__ __forceinline__ int firstKey(const AttentionArgs &a, int i0) {
    return greater(0, lesser(a.tk, i0 + a.lower));
}
static __device__ __forceinline__ int endKey(const AttentionArgs &a, int i1) {
    return greater(0, lesser(a.tk, i1 - 1 + a.upper));
}

// firstQuery and endQuery bound the queries that see one of the keys j0 ≤ j < j1.
static __device__ __forceinline__ int firstQuery(const AttentionArgs &a, int j0) {
    return greater(0, lesser(a.tq, j0 - a.upper + 1));
}
static __device__ __forceinline__ int endQuery(const AttentionArgs &a, int j1) {
    return greater(0, lesser(a.tq, j1 - a.lower));
}

static __device__ __forceinline__ bool visible(const AttentionArgs &a, int i, int j) {
    return j < a.tk && j >= i + a.lower && j < i + a.upper;
}

// philox is internal/rng's At: block number block of the numbers at (key, position).
static __device__ __forceinline__ uint4 philox(unsigned long long key, unsigned long long position,
                                               unsigned long long block) {
    unsigned int k0 = (unsigned int)key, k1 = (unsigned int)(key >> 32);
    unsigned int c0 = (unsigned int)block, c1 = (unsigned int)(block >> 32);
    unsigned int c2 = (unsigned int)position, c3 = (unsigned int)(position >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0;
        c1 = (unsigned int)p1;
        c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1;
        c3 = (unsigned int)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

// word is word i of a block without an index into memory.
static __device__ __forceinline__ unsigned int word(uint4 w, unsigned int i) {
    unsigned int lo = (i & 1) ? w.y : w.x, hi = (i & 1) ? w.w : w.z;
    return (i & 2) ? hi : lo;
}

// elementOf is dropout's element of query i of head h, and key 0.
static __device__ __forceinline__ unsigned long long elementOf(const AttentionArgs &a, int h, int i) {
    return ((unsigned long long)h * (unsigned int)a.tq + (unsigned int)i) * (unsigned int)a.tk;
}
