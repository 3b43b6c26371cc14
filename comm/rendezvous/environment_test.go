// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// The token leaves the environment when it is read, so that no child inherits it; the process itself can read it again.
func TestTokenLeavesTheEnvironment(t *testing.T) {
	const token = "a token of this test alone, and of no other one"
	for name, value := range map[string]string{
		"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29511", env.VarJobToken: token,
		env.VarJobTokenFile: "",
	} {
		t.Setenv(name, value)
	}
	for range 2 {
		c, err := rendezvous.FromEnv()
		require.NoError(t, err)
		require.Equal(t, token, string(c.Token))
		require.NotContains(t, strings.Join(os.Environ(), "\n"), token)
	}
	if runtime.GOOS != "windows" {
		out, err := exec.Command("env").Output()
		require.NoError(t, err)
		require.NotContains(t, string(out), token)
	}
	again, ok := rendezvous.LookupEnv(env.VarJobToken)
	require.True(t, ok)
	require.Equal(t, token, again)
	t.Setenv("MASTER_PORT", "29512")
	_, ok = rendezvous.LookupEnv(env.VarJobToken)
	require.False(t, ok, "it is another job's")
}

// Files that hold secrets are their owner's alone.
func TestTokenFileIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files have no such bits")
	}
	path := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(path, rendezvous.NewToken(), 0o600))
	for name, value := range map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h",
		"MASTER_PORT": "29513", env.VarJobToken: "", env.VarJobTokenFile: path} {
		t.Setenv(name, value)
	}
	_, err := rendezvous.FromEnv()
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o640))
	_, err = rendezvous.FromEnv()
	require.ErrorContains(t, err, "has mode -rw-r-----, so that others can read the secret: want 0600")
}
