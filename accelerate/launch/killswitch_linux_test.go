// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A rank that has ended before it could become a target leaves nothing to let go of: no other file is closed, standard
// input above all, from which a guard learns that its launcher lives.
func TestKillSwitchRemovesOnlyWhatItAdded(t *testing.T) {
	k, err := newKillSwitch()
	require.NoError(t, err)
	t.Cleanup(k.close)
	const nobody = math.MaxInt32 // above what the kernel gives a process
	require.ErrorIs(t, k.add(-nobody), unix.ESRCH)
	k.remove(-nobody)
	k.remove(nobody)
	_, err = unix.FcntlInt(0, unix.F_GETFD, 0)
	require.NoError(t, err, "standard input")
}
