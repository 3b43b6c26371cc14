// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
)

// named is a callback of a name.
type named struct {
	callbacks.Base
	text string
}

func (named) CallbackName() string { return "named" }

func TestDefaults(t *testing.T) {
	require.Panics(t, func() { callbacks.RegisterDefault(nil) })
	callbacks.RegisterDefault(func() callbacks.Callback { return named{text: "registered"} })
	require.Contains(t, callbacks.NewDefaults(nil), named{text: "registered"})
	require.NotContains(t, callbacks.NewDefaults([]callbacks.Callback{named{text: "the program's"}}),
		named{text: "registered"})
}
