// SPDX-License-Identifier: Apache-2.0

#include "reduce.cuh"

REDUCTIONS(f64)
SUM_SQ(f64)
