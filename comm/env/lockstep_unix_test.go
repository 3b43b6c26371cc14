// SPDX-License-Identifier: Apache-2.0

//go:build unix

package env

import (
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMasterListener(t *testing.T) {
	opened, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := opened.(*net.TCPListener).File()
	require.NoError(t, err)
	fd, err := syscall.Dup(int(f.Fd()))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, opened.Close())

	e := &Environment{lookup: Map(vars{VarListenerFD: strconv.Itoa(fd)})}
	l, err := e.MasterListener()
	require.NoError(t, err)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	server, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, server.Close())
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
