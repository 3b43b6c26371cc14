// SPDX-License-Identifier: Apache-2.0

#include "norm.cuh"

NORMS(bf16, bf16, bf16)
SUMS(bf16)
