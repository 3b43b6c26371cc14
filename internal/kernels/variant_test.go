// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseInvertsString(t *testing.T) {
	for v := Generic; v < numVariants; v++ {
		got, err := Parse(v.String())
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	_, err := Parse("sse2")
	require.EqualError(t, err, `kernels: unknown variant "sse2": want one of generic, avx2, avx512, amx`)
	require.Equal(t, "variant(9)", Variant(9).String())
}

func TestAvailableIsOrderedAndStartsWithGeneric(t *testing.T) {
	list := Available()
	require.Equal(t, Generic, list[0])
	require.IsIncreasing(t, list)
	require.Subset(t, Compiled(), list)
	for _, v := range list {
		require.Empty(t, Missing(v))
	}
}

func TestChoose(t *testing.T) {
	best, err := choose("")
	require.NoError(t, err)
	list := Available()
	require.Equal(t, list[len(list)-1], best)
	for _, v := range list {
		got, err := choose(v.String())
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	_, err = choose("AVX2")
	require.EqualError(t, err,
		`LOCKSTEP_KERNELS=AVX2: kernels: unknown variant "AVX2": want one of generic, avx2, avx512, amx`)
}

func TestUnavailableVariantIsAnError(t *testing.T) {
	saved := compiled
	defer func() { compiled = saved }()
	compiled = []Variant{Generic}
	_, err := choose("avx512")
	require.EqualError(t, err, "LOCKSTEP_KERNELS=avx512: kernels: variant avx512 is not available: it is not part of "+
		"this build (available: generic)")
	_, err = Force(AVX2)
	require.ErrorContains(t, err, "variant avx2 is not available")
}

func TestForceAndRestore(t *testing.T) {
	before := Active()
	for _, v := range Available() {
		restore, err := Force(v)
		require.NoError(t, err)
		require.Equal(t, v, Active())
		restore()
		require.Equal(t, before, Active())
	}
}

func TestEnvironment(t *testing.T) {
	saved, before := initial, active.Load()
	defer func() { initial = saved; active.Store(before) }()
	set := func(value string) {
		t.Setenv(EnvVar, value)
		active.Store(0)
		initial = sync.OnceValues(fromEnvironment) // as in a process that starts with this value
	}
	set("generic")
	require.NoError(t, Init())
	require.Equal(t, Generic, Active())

	set("fast")
	message := `LOCKSTEP_KERNELS=fast: kernels: unknown variant "fast": want one of generic, avx2, avx512, amx`
	require.EqualError(t, Init(), message)
	require.PanicsWithError(t, message, func() { Active() })
}

func TestCachesArePlausible(t *testing.T) {
	ways := L1Ways()
	require.Positive(t, ways)
	require.LessOrEqual(t, ways, 64)
	_, size := dataCache(2)
	if size > 0 { // or the processor does not say
		require.GreaterOrEqual(t, size, 64<<10)
		require.LessOrEqual(t, size, 64<<20)
		require.Zero(t, size%(16<<10))
	}
	require.Equal(t, size >= 2<<20, LargeL2())
}
