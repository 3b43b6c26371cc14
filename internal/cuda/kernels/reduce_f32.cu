// SPDX-License-Identifier: Apache-2.0

#include "reduce.cuh"

REDUCTIONS(f32)
SUM_SQ(f32)
