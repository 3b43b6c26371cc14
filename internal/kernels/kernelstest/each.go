// SPDX-License-Identifier: Apache-2.0

// Package kernelstest runs a test under each variant of the kernels.
//
// It is NOT for use outside of tests: it imports package testing.
package kernelstest

import (
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// Want skips a test of a variant that the processor lacks; see lacking.Skip.
func Want(t testing.TB, v kernels.Variant) {
	t.Helper()
	if missing := kernels.Missing(v); len(missing) > 0 {
		lacking.Skip(t, lacking.Variants, v.String(), "the processor lacks "+strings.Join(missing, ", "))
	}
}

// Each runs test once under each variant that this binary contains, as a subtest of the variant's name. A variant that
// the processor lacks shows up as a skipped subtest naming the missing features, never as silence. The variant is
// process-wide: neither test nor its caller may call t.Parallel.
func Each(t *testing.T, test func(t *testing.T, v kernels.Variant)) {
	t.Helper()
	for _, v := range kernels.Compiled() {
		t.Run(v.String(), func(t *testing.T) {
			Want(t, v)
			restore, err := kernels.Force(v)
			if err != nil {
				t.Fatal(err)
			}
			defer restore()
			test(t, v)
		})
	}
}
