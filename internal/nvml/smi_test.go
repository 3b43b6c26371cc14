// SPDX-License-Identifier: Apache-2.0

//go:build unix

package nvml

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// install puts a program nvidia-smi that is a shell script into its own PATH.
func install(t *testing.T, script string) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":/usr/bin:/bin")
}

// Two devices as nvidia-smi prints them, out of order, one of which tells little.
const twoGPUs = `case "$1" in
--query-gpu=index,name,uuid,pci.bus_id,compute_cap,memory.total,driver_version)
	echo '1, NVIDIA A10G, GPU-b, 00000000:00:1F.0, 8.6, [N/A], 570.86.15'
	echo '0, NVIDIA H100 80GB HBM3, GPU-a, 00000000:00:1E.0, 9.0, 81559, 570.86.15' ;;
--query-gpu=index,utilization.gpu,utilization.memory,memory.used,power.draw,temperature.gpu)
	echo '0, 97, 41, 40000, 612.34, 58'
	echo '1, [N/A], [N/A], 1, [Not Supported], 30' ;;
*) echo "unknown $1" >&2; exit 2 ;;
esac
[ "$2" = --format=csv,noheader,nounits ]
`

func TestSMI(t *testing.T) {
	install(t, twoGPUs)
	l, err := openSMI()
	require.NoError(t, err)
	require.Equal(t, "570.86.15", l.Driver())
	require.Equal(t, []GPU{
		{0, "NVIDIA H100 80GB HBM3", "GPU-a", "00000000:00:1E.0", "9.0", 81559 << 20},
		{1, "NVIDIA A10G", "GPU-b", "00000000:00:1F.0", "8.6", 0},
	}, l.GPUs())
	usage, err := l.Usage()
	require.NoError(t, err)
	require.Equal(t, Usage{97, 41, 40000 << 20, 612.34, 58}, usage[0])
	require.Equal(t, 30.0, usage[1].Temperature)
	require.True(t, math.IsNaN(usage[1].Utilization) && math.IsNaN(usage[1].Power))
	require.NoError(t, l.Close())
}

// What nvidia-smi says when it fails is in the error; a host without it has no driver.
func TestSMIThatFails(t *testing.T) {
	for script, want := range map[string]string{
		"echo 'NVIDIA-SMI could not communicate with the driver.'; exit 9": "could not communicate",
		"echo '0, one'": "wrong number of fields",
		"echo 'x, NVIDIA A10G, GPU-b, 00000000:00:1F.0, 8.6, 1, 570'": `index "x"`,
		"exit 0": "lists no device",
	} {
		install(t, script)
		_, err := openSMI()
		require.ErrorContains(t, err, want)
		require.NotErrorIs(t, err, ErrNone)
	}
	t.Setenv("PATH", t.TempDir())
	_, err := openSMI()
	require.ErrorIs(t, err, ErrNone)
}
