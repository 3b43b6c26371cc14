// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDown(t *testing.T) {
	for _, address := range []string{"127.0.0.1:1", "[::1]:1", "localhost:1", "10.0.0.1:1", "example:1", "",
		"127.0.0.1"} {
		require.NoError(t, Down(address), address)
	}
	lo := net.Interface{Name: "lo", Flags: net.FlagLoopback}
	require.EqualError(t, down([]net.Interface{{Name: "eth0", Flags: net.FlagUp}, lo}),
		"the loopback interface lo is down: want it up, as by ip link set lo up")
	lo.Flags |= net.FlagUp
	require.NoError(t, down([]net.Interface{lo}))
	require.NoError(t, down(nil))
}

func TestWithin(t *testing.T) {
	own := []net.Addr{&net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)}}
	for host, want := range map[string]bool{"127.0.0.1": true, "127.0.1.1": true, "::1": true, "localhost": true,
		"10.0.0.1": true, "10.0.0.2": false, "::ffff:10.0.0.1": true} {
		require.Equal(t, want, within(resolve(host)[0], own), host)
	}
	require.Empty(t, resolve(""))
}
