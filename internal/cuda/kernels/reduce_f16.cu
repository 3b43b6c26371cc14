// SPDX-License-Identifier: Apache-2.0

#include "reduce.cuh"

REDUCTIONS(f16)
SUM_WIDE(f16)
SUM_SQ(f16)
