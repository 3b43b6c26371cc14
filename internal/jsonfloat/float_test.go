// SPDX-License-Identifier: Apache-2.0

package jsonfloat_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/jsonfloat"
)

func TestFloat(t *testing.T) {
	for x, want := range map[float64]string{
		0.1: "0.1", -3: "-3", 1e300: "1e+300", math.Inf(1): `"+Inf"`, math.Inf(-1): `"-Inf"`, math.NaN(): `"NaN"`,
	} {
		text, err := json.Marshal(jsonfloat.Float(x))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		var back jsonfloat.Float
		require.NoError(t, json.Unmarshal(text, &back))
		require.True(t, float64(back) == x || math.IsNaN(x) && math.IsNaN(float64(back)), "%v", back)
	}
	var f jsonfloat.Float
	require.Error(t, json.Unmarshal([]byte(`"much"`), &f))
}
