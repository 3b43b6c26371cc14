//go:build !amd64 || noasm

package vecmath

// softmaxRowsVector does nothing.
func softmaxRowsVector(_, _ int, _ *float32, _ int, _ *float32, _ *float64, _ *float32, _ float32) bool {
	return false
}

// scoreRowsVector does nothing.
func scoreRowsVector(_, _ int, _, _ *float32, _ int, _, _ *float32, _, _ float32) bool { return false }

// scaleRowsVector does nothing.
func scaleRowsVector(_, _ int, _ *float32, _ int, _ *float32) bool { return false }
