// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || noasm

package gemm

// engine32 returns the engine for single precision: this build has only the generic one.
func engine32() *engine[float32] { return &generic32 }

// engine64 returns the engine for double precision.
func engine64() *engine[float64] { return &generic64 }

// formatBF16 returns the way of reading bfloat16.
func formatBF16() *format[float32] { return &genericBF16 }

// formatF16 returns the way of reading float16.
func formatF16() *format[float32] { return &genericF16 }
