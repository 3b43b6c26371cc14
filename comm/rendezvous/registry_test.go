// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
)

func TestRegisterEngine(t *testing.T) {
	_, err := Engine("abacus")
	require.ErrorContains(t, err, `no engine "abacus" is built into this program (none is)`)
	t.Cleanup(func() { delete(engines.new, "slide-rule") })
	broken := errors.New("broken")
	RegisterEngine("slide-rule", func(*Job, comm.Options) (*comm.Group, error) { return nil, broken })
	require.Equal(t, []string{"slide-rule"}, EngineNames())
	f, err := Engine("slide-rule")
	require.NoError(t, err)
	_, err = f(nil, comm.Options{})
	require.ErrorIs(t, err, broken)
	_, err = Engine("abacus")
	require.ErrorContains(t, err, "registered: slide-rule")
	require.PanicsWithValue(t, `rendezvous: engine "slide-rule" is registered twice`, func() {
		RegisterEngine("slide-rule", f)
	})
}
