// SPDX-License-Identifier: Apache-2.0

#include "norm.cuh"

NORMS(f32, f32, f32)
SUMS(f32)
