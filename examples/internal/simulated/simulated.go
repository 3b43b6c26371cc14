// SPDX-License-Identifier: Apache-2.0

// Package simulated gives tests of the examples a GPU that is simulated on the CPU: it runs the kernels of real ones.
// It is no example itself.
package simulated

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Name is what the argument device calls it.
const Name = "simulated"

var opened = sync.OnceValues(func() (*tensor.Device, error) {
	d, err := backend.Open(fake.New(fake.Options{Devices: 1, Seed: 1}), 0)
	if err != nil {
		return nil, err
	}
	return joint.Device[*tensor.Device](d), nil
})

var register = sync.OnceFunc(func() { tensor.RegisterDevice(Name, opened) })

// Compare runs a program on the CPU and on the simulated GPU. That one has to compute, and all of it in its own
// kernels.
func Compare(t *testing.T, run func(device string)) {
	t.Helper()
	register()
	run("cpu")
	d, err := opened()
	require.NoError(t, err)
	before := d.MemStats().Allocs
	run(Name)
	require.Greater(t, d.MemStats().Allocs, before, "nothing was computed on the device")
	require.Empty(t, d.Composed(), "kernels that were composed of others")
}

// Steps are the losses and the norms of the steps that a run's folder has records of.
func Steps(t *testing.T, out string) (losses, norms []float64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, "trainer_state.json"))
	require.NoError(t, err)
	var state struct {
		LogHistory []struct {
			Loss *float64 `json:"loss"`
			Norm float64  `json:"grad_norm"`
		} `json:"log_history"`
	}
	require.NoError(t, json.Unmarshal(text, &state))
	for _, r := range state.LogHistory {
		if r.Loss != nil {
			losses, norms = append(losses, *r.Loss), append(norms, r.Norm)
		}
	}
	return losses, norms
}
