// SPDX-License-Identifier: Apache-2.0

// Package rng is the only source of random numbers: a counter-based generator, in which a number depends on where it is
// used, not on how many were drawn before.
//
// A number is addressed by (key, position, element). The key identifies the use of the numbers: Key(seed, module path,
// call ordinal). The position is the sample's place in the training stream, the element its index within the sample.
// This gives the same bits for any chunking, any number of workers and any number of ranks, recomputation without
// stored state, and seeking in O(1).
//
// The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011).
// The addresses map to its 128-bit counter as (element / lanes, position), low words first, where lanes is the number
// of values in one block of 128 bits: 4 for uint32, float32 and float32 normals, 2 for uint64, float64 and float64
// normals. The normal distribution uses arithmetic of this package instead of package math's, so that its bits are the
// same on every processor.
//
// The number for a key, position and element is part of the checkpoint format: it never changes, and golden tests check
// it.
//
// The package is not for cryptography, and it is independent of tensors and devices: kernels call the Fill functions.
package rng
