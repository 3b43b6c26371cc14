// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/examples/internal/simulated"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A GPU answers as the CPU does, over two turns, of which the second continues behind the keys and values of the first,
// and with an adapter.
func TestDevice(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, under which the interpreter takes minutes
	}
	base, err := filepath.Abs(folder)
	require.NoError(t, err)
	m, err := models.LoadPretrained(tensor.CPU(), base)
	require.NoError(t, err)
	a, err := lora.New(m, lora.Config{R: 4, Alpha: 40, TargetModules: lora.AllLinear, Init: lora.InitRandom,
		BaseModel: base})
	require.NoError(t, err)
	adapted := t.TempDir()
	require.NoError(t, a.Save(adapted))
	for name, more := range map[string][]string{
		"float32": nil,
		"adapter": {"--adapter", adapted},
		"sampled": {"--temperature", "0.7", "--top_p", "0.9"},
	} {
		t.Run(name, func(t *testing.T) {
			said := map[string]string{}
			simulated.Compare(t, func(device string) {
				said[device] = talked(t, "Who?\nSure?\n", append([]string{"--max_new_tokens", "8", "--device", device},
					more...)...)
			})
			require.Greater(t, len(said["cpu"]), 4)
			require.Equal(t, said["cpu"], said[simulated.Name])
		})
	}
}

// A device that the program has not is an error, whatever else is right.
func TestNoDevice(t *testing.T) {
	_, _, err := piped(t, "Who?\n", "--device", "tpu")
	require.ErrorContains(t, err, `device is "tpu" (flag --device): want one of auto, cpu`)
}
