// SPDX-License-Identifier: Apache-2.0

// The instructions of the matrix units of compute capability 8.0, and of copies to shared memory that run beside other
// work.
#pragma once

#include "lockstep.cuh"

DEVICE u32 sharedAddress(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// copy16 starts a copy of 16 bytes, aligned to 16, or fills with zeros; src is not read then and may be anywhere.
DEVICE void copy16(u32 dst, const void *src, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(__cvta_generic_to_global(src)),
               "r"(read ? 16 : 0)
               : "memory");
}

// copy4 is copy16 for 4 bytes.
DEVICE void copy4(u32 dst, const void *src, bool read) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(dst), "l"(__cvta_generic_to_global(src)),
               "r"(read ? 4 : 0)
               : "memory");
}

// commit ends a group of copies; await waits until all groups but the last N have arrived, as far as this thread began
// them.
DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void await() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// matrices loads four matrices of 8 × 8 numbers of 16 bits: lane 8m+r holds the address of row r of matrix m. Of each,
// lane 4g+t gets elements 2t and 2t+1 of row g, or of column g if transposed.
DEVICE void matrices(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
DEVICE void matricesTransposed(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// Unit is the matrix unit for numbers of type T: c += a·b, 16 × 16 by 16 × 8. Lane 4g+t holds c of rows g and g+8 (the
// first two numbers, the last two) and columns 2t and 2t+1; a of the same rows and columns 2t, 2t+1 (a0, a1) and 2t+8,
// 2t+9 (a2, a3); b of column g and rows 2t, 2t+1 (b0) and 2t+8, 2t+9 (b1).
template <class T> struct Unit;
template <> struct Unit<bf16> {
  DEVICE void multiply(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  // pack rounds two numbers, the first to the lower half.
  DEVICE u32 pack(f32 low, f32 high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};
template <> struct Unit<f16> {
  DEVICE void multiply(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  DEVICE u32 pack(f32 low, f32 high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};

// power2 is 2ˣ to about two units in the last place; tiny results are 0.
DEVICE f32 power2(f32 x) {
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// permute takes four bytes of y:x by the selector's four digits; with the digit's bit 3 set, eight times the sign of the
// byte.
DEVICE u32 permute(u32 x, u32 y, u32 selector) {
  u32 z;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "r"(selector));
  return z;
}
