// SPDX-License-Identifier: Apache-2.0

//go:build unix

package peer

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPeer(t *testing.T) {
	var out bytes.Buffer
	p, err := Start(exec.Command("sh", "-c", `echo loading; echo ready 1.0; read a b; echo "$a.$b"`), &out)
	require.NoError(t, err)
	require.Equal(t, "peer: 1.0\n", out.String())
	took, err := p.Ask(3, 25)
	require.NoError(t, err)
	require.InDelta(t, 3.25, took, 0)
	_, err = p.Ask(1)
	require.Error(t, err)
	p.Stop()

	_, err = Start(exec.Command("sh", "-c", "echo no; exit 3"), &out)
	require.ErrorContains(t, err, "has not started: exit status 3")
}
