// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/optim"
)

// The values of the argument optim are the optimizers that there are, and what optim_args may hold is what they read.
func TestOptimizersHaveRows(t *testing.T) {
	var names []string
	for name, settings := range args.OptimSettingNames() {
		names = append(names, string(name))
		own := map[string]any{}
		for _, key := range settings {
			own[key] = nil
		}
		_, err := optim.ByName(string(name), nil, own)
		require.NoError(t, err)
	}
	require.ElementsMatch(t, optim.Names(), names)
}
