// SPDX-License-Identifier: Apache-2.0

package env

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJobToken(t *testing.T) {
	write := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	token := func(v vars) (string, error) {
		e, err := Detect(Map(v))
		require.NoError(t, err)
		return e.JobToken()
	}
	got, err := token(vars{VarJobToken: "s3cret", VarJobTokenFile: "ignored"})
	require.NoError(t, err)
	require.Equal(t, "s3cret", got)
	got, err = token(vars{VarJobTokenFile: write("from file\n", 0o600)})
	require.NoError(t, err)
	require.Equal(t, "from file", got)
	_, err = token(nil)
	require.ErrorIs(t, err, ErrNoToken)
	_, err = token(vars{VarJobTokenFile: write(" \n", 0o600)})
	require.ErrorContains(t, err, "is empty: want a random string")
	_, err = token(vars{VarJobTokenFile: filepath.Join(t.TempDir(), "absent")})
	require.ErrorIs(t, err, os.ErrNotExist)
	if runtime.GOOS != "windows" {
		_, err = token(vars{VarJobTokenFile: write("shown", 0o644)})
		require.ErrorContains(t, err, "has mode -rw-r--r--, so that others can read the secret: want 0600")
	}
}

func TestMasterListenerRefuses(t *testing.T) {
	e, err := Detect(Map(nil))
	require.NoError(t, err)
	l, err := e.MasterListener()
	require.NoError(t, err)
	require.Nil(t, l)
	for _, bad := range []string{"x", "1", "-1"} {
		e.lookup = Map(vars{VarListenerFD: bad})
		_, err = e.MasterListener()
		require.ErrorContains(t, err, VarListenerFD+" is")
	}
}
