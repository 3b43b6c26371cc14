// SPDX-License-Identifier: Apache-2.0

#include "reduce.cuh"

REDUCTIONS(i32)
REDUCTIONS(i64)
