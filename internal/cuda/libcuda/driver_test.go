// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// compile makes a library of C.
func compile(dir, name string, args ...string) (string, error) {
	file := filepath.Join(dir, name)
	out, err := exec.Command("cc", append(args, "-shared", "-fPIC", "-O1", "-o", file)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return file, nil
}

// needCompiler skips the test on a machine without a C compiler.
func needCompiler(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		lacking.Skip(t, lacking.Tools, "cc", "no C compiler")
	}
}

// compileDriver makes a driver of C whose other functions return 0. It has none that is optional unless it is named.
func compileDriver(dir string, names []string, args ...string) (string, error) {
	var f functions
	names = slices.Concat(names, slices.Collect(maps.Keys(f.table())), slices.Collect(maps.Keys(f.graphs())))
	rest := &strings.Builder{}
	for _, name := range names {
		fmt.Fprintf(rest, "__attribute__((weak)) int %s(void) { return 0; }\n", name)
	}
	source := filepath.Join(dir, "rest.c")
	if err := os.WriteFile(source, []byte(rest.String()), 0o600); err != nil {
		return "", err
	}
	return compile(dir, driverFile, append([]string{source, "-Wl,-soname," + driverFile}, args...)...)
}

// driverOf is a driver of C, and its library.
func driverOf(t *testing.T, args ...string) (*driver, clib.Library) {
	t.Helper()
	needCompiler(t)
	file, err := compileDriver(t.TempDir(), nil, args...)
	require.NoError(t, err)
	lib, err := clib.Open(file)
	require.NoError(t, err)
	d := &driver{}
	require.NoError(t, d.bind(lib))
	return d, lib
}

// TestUUIDs opens the devices of drivers that have the older function, the newer one, both, or neither. Two slices of a
// GPU have their own names, unless the driver has the older function alone.
func TestUUIDs(t *testing.T) {
	name := func(kind, b string) string {
		two := b + b
		return kind + "-" + two + two + "-" + two + "-" + two + "-" + two + "-" + two + two + two
	}
	gpu, one, other := name("GPU", "11"), name("MIG", "b1"), name("MIG", "b2")
	for _, age := range []struct {
		functions []string
		want      []string
	}{
		{[]string{"-DUUID", "-DUUID_V2"}, []string{gpu, one, other}},
		{[]string{"-DUUID_V2"}, []string{gpu, one, other}},
		{[]string{"-DUUID"}, []string{gpu, name("GPU", "aa"), name("GPU", "aa")}},
		{nil, []string{"", "", ""}},
	} {
		d, _ := driverOf(t, append([]string{"testdata/uuid.c"}, age.functions...)...)
		require.NoError(t, d.call("cuDeviceGetCount", d.f.deviceGetCount, clib.Address(&d.devices)))
		for i, want := range age.want {
			v, err := d.Open(i)
			require.NoError(t, err)
			require.Equal(t, want, v.Info().UUID, "device %d of a driver with %v", i, age.functions)
		}
	}
}
