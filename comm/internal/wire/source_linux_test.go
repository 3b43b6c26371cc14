// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

const (
	envFlood  = "LOCKSTEP_WIRE_TEST_FLOOD"
	envListen = "LOCKSTEP_WIRE_TEST_LISTEN"
)

// TestMain plays another user's process, if it is one.
func TestMain(m *testing.M) {
	if address := os.Getenv(envFlood); address != "" {
		for i := 0; ; i++ {
			if _, err := net.Dial("tcp", address); err != nil { // held, never used
				fmt.Println("held", i, err)
				return
			}
			if i == 2*Strangers {
				fmt.Println("flooded")
				time.Sleep(time.Minute)
				return
			}
		}
	}
	if os.Getenv(envListen) != "" {
		os.Exit(listenAsAnother())
	}
	m.Run()
}

// listenAsAnother says where it listens, and then what it was told first.
func listenAsAnother() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return 1
	}
	_ = c.SetDeadline(time.Now().Add(Patience))
	n, err := c.Read(make([]byte, 1))
	fmt.Println("heard", n, err)
	return 0
}

// accepted is both ends of a connection within this host.
func accepted(t *testing.T, network, address string) (dialled, heard net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	require.NoError(t, err)
	defer l.Close()
	dialled, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	heard, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = dialled.Close(), heard.Close() })
	return dialled, heard
}

// The kernel says which user is at the other end of a connection within the host.
func TestSourceIsTheUser(t *testing.T) {
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0", "tcp": ":0"} {
		if network == "tcp6" {
			l, err := net.Listen(network, address)
			if err != nil {
				continue // a host without IPv6
			}
			require.NoError(t, l.Close())
		}
		_, heard := accepted(t, network, address)
		require.Equal(t, fmt.Sprint("user ", os.Geteuid()), source(heard), network)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	require.Empty(t, source(a))
	_, ok := owner(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1})
	require.False(t, ok)
}

// wantAnother skips a test that needs a process of another user.
func wantAnother(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		lacking.Skip(t, lacking.Hosts, "namespaces", "a process of another user can only be started by root")
	}
}

// another starts this program as another user, until the test ends, and returns what it prints.
func another(t *testing.T, env string) io.Reader {
	t.Helper()
	self, err := os.Open("/proc/self/exe") // it may lie in a folder that is root's alone
	require.NoError(t, err)
	defer self.Close()
	other := exec.Command("/proc/self/fd/3")
	other.ExtraFiles = []*os.File{self}
	other.Env = []string{env}
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533},
		Pdeathsig: syscall.SIGKILL}
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	return out
}

// A process of another user that listens in the place of a rank gets nothing to try tokens against.
func TestDiallerTrustsNoOtherUser(t *testing.T) {
	wantAnother(t)
	out := bufio.NewReader(another(t, envListen+"=1"))
	address, err := out.ReadString('\n')
	require.NoError(t, err)
	c, err := net.Dial("tcp", strings.TrimSpace(address))
	require.NoError(t, err)
	_, err = newKey(t, token, Options{}).Greet(c, Hello{Kind: "store", Rank: 1})
	require.ErrorIs(t, err, ErrUser)
	require.ErrorContains(t, err, "of user 65533: want one of user 0")
	require.NoError(t, c.Close())
	heard, err := out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "heard 0 EOF\n", heard)
}

// Another user of the host who opens more connections than may be in the handshake pushes out only his own.
func TestAnotherUserCannotPushOutOurs(t *testing.T) {
	wantAnother(t)
	served := make(chan Hello, 1)
	key := newKey(t, token, Options{})
	l, err := Listen("127.0.0.1:0", key, func(c net.Conn, h Hello) { served <- h; _ = c.Close() })
	require.NoError(t, err)
	defer l.Close()
	slow, err := net.Dial("tcp", l.Addr().String()) // the first to come, so the oldest
	require.NoError(t, err)
	defer slow.Close()
	out := another(t, envFlood+"="+l.Addr().String())
	word := make([]byte, len("flooded"))
	_, err = out.Read(word)
	require.NoError(t, err)
	require.Equal(t, "flooded", string(word))
	require.Eventually(t, func() bool { return l.Refused() >= Strangers }, Patience, time.Millisecond)
	_, err = key.Greet(slow, Hello{Kind: "late", Rank: 1})
	require.NoError(t, err)
	require.Equal(t, Hello{Kind: "late", Rank: 1}, <-served)
}
