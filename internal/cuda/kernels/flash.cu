// SPDX-License-Identifier: Apache-2.0

// Attention on the matrix units, without dropout.
#include "flash.cuh"

FLASH(flash, false)
