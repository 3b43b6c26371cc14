// SPDX-License-Identifier: Apache-2.0

#include "norm.cuh"

NORMS(f32_bf16, f32, bf16)
