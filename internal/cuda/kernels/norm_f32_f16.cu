// SPDX-License-Identifier: Apache-2.0

#include "norm.cuh"

NORMS(f32_f16, f32, f16)
