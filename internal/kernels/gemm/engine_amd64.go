//go:build !noasm

package gemm

// engine32 returns the engine for single precision.
func engine32() *engine[float32] { return &generic32 }
