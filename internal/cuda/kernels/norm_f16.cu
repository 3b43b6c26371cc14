// SPDX-License-Identifier: Apache-2.0

#include "norm.cuh"

NORMS(f16, f16, f16)
SUMS(f16)
