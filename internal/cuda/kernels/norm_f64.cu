// SPDX-License-Identifier: Apache-2.0

#include "norm.cuh"

NORMS(f64, f64, f64)
SUMS(f64)
