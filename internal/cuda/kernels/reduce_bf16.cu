// SPDX-License-Identifier: Apache-2.0

#include "reduce.cuh"

REDUCTIONS(bf16)
SUM_WIDE(bf16)
SUM_SQ(bf16)
