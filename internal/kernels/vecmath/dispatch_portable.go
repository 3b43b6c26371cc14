//go:build !amd64 || noasm

package vecmath

func expActive(dst, src []float32, shift float32) { expGeneric(dst, src, shift) }

func tanhActive(dst, src []float32) { tanhGeneric(dst, src) }
