// SPDX-License-Identifier: Apache-2.0

package lacking_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// outcome is a test that says how it ended.
type outcome struct {
	testing.TB
	failed, skipped string
}

func (*outcome) Helper()          {}
func (*outcome) Name() string     { return "TestTiles" }
func (o *outcome) Skip(v ...any)  { o.skipped = fmt.Sprint(v...) }
func (o *outcome) Fatal(v ...any) { panic(fmt.Sprint(v...)) }
func (o *outcome) Fatalf(f string, v ...any) {
	o.failed = fmt.Sprintf(f, v...)
	panic(o.failed)
}

func TestSkipIsWrittenDown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skipped")
	t.Setenv(lacking.File, file)
	t.Setenv("LOCKSTEP_REQUIRE_VARIANTS", "avx2,avx512")
	var o outcome
	lacking.Skip(&o, lacking.Variants, "amx", "the processor lacks amx_bf16")
	lacking.Skip(&o, lacking.Variants, "amx", "the processor lacks amx_bf16")
	require.Equal(t, "the processor lacks amx_bf16", o.skipped)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "TestTiles: the processor lacks amx_bf16\nTestTiles: the processor lacks amx_bf16\n", string(text))
}

func TestSkipFailsWhatTheMachineMustHave(t *testing.T) {
	t.Setenv("LOCKSTEP_REQUIRE_VARIANTS", "avx2,avx512")
	var o outcome
	require.Panics(t, func() { lacking.Skip(&o, lacking.Variants, "avx512", "the processor lacks avx512f") })
	require.Equal(t, "the processor lacks avx512f, but LOCKSTEP_REQUIRE_VARIANTS=avx2,avx512", o.failed)
	require.Empty(t, o.skipped)
}
