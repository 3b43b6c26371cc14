// SPDX-License-Identifier: Apache-2.0

// Package kernelstest runs a test under each variant of the kernels.
//
// It is NOT for use outside of tests: it imports package testing.
package kernelstest

import (
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// Each runs test once under each variant that this binary contains, as a subtest of the variant's name. A variant that the processor lacks
// shows up as a skipped subtest naming the missing features, never as silence. The variant is process-wide: neither test nor its caller may
// call t.Parallel.
func Each(t *testing.T, test func(t *testing.T, v kernels.Variant)) {
	t.Helper()
	for _, v := range kernels.Compiled() {
		t.Run(v.String(), func(t *testing.T) {
			if lacking := kernels.Missing(v); len(lacking) > 0 {
				t.Skipf("the processor lacks %s", strings.Join(lacking, ", "))
			}
			restore, err := kernels.Force(v)
			if err != nil {
				t.Fatal(err)
			}
			defer restore()
			test(t, v)
		})
	}
}
