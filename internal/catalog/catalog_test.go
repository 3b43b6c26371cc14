// SPDX-License-Identifier: Apache-2.0

package catalog_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

func TestWants(t *testing.T) {
	sgd, ok := catalog.OptimizerNamed("sgd")
	require.True(t, ok)
	for _, c := range []struct {
		given catalog.Values
		want  []string
	}{
		{nil, nil},
		{catalog.Values{"momentum": 0.9, "nesterov": true, "dampening": nil}, nil},
		{catalog.Values{"momentum": json.Number("1"), "dampening": 1}, nil},
		{catalog.Values{"momentum": math.NaN()}, []string{"momentum to be a number ≥ 0"}},
		{catalog.Values{"momentum": math.Inf(1)}, []string{"momentum to be a number ≥ 0"}},
		{catalog.Values{"momentum": true, "dampening": uint8(2), "nesterov": 1}, []string{
			"dampening to be a number in [0, 1]", "momentum to be a number ≥ 0", "nesterov to be true or false"}},
		{catalog.Values{"speed": 1}, []string{"keys from momentum, dampening, nesterov for sgd, not speed"}},
		{catalog.Values{"nesterov": true}, []string{"momentum > 0 and dampening 0 with nesterov"}},
	} {
		require.Equal(t, c.want, sgd.Wants("sgd", c.given), "%v", c.given)
	}
	adam, _ := catalog.OptimizerNamed("adam")
	require.Equal(t, []string{"none, since adam has no settings of its own"},
		adam.Wants("adam", catalog.Values{"speed": 1}))
}

// A name means one row, and a default keeps its rule.
func TestTablesAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, names := range [][]string{catalog.OptimizerNames(), catalog.ScheduleNames()} {
		for _, name := range names {
			require.False(t, seen[name], name)
			seen[name] = true
		}
	}
	sound := func(name string, settings catalog.Settings) {
		defaults := settings.Fill(nil)
		require.Empty(t, settings.Wants(name, defaults))
		for _, s := range settings {
			require.NotEmpty(t, s.Rule.Want, "%s: %s", name, s.Key)
		}
	}
	for _, o := range catalog.Optimizers {
		sound(o.Name, o.Arguments)
		sound(o.Name, o.Settings)
		require.Empty(t, o.Wants(o.Name, o.Settings.Fill(nil)))
	}
	for _, s := range catalog.Schedules {
		sound(s.Name, s.Settings)
	}
}
