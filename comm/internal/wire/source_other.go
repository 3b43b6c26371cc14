// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package wire

import "net"

// owner is not known here.
func owner(_, _ *net.TCPAddr) (uid uint32, ok bool) { return 0, false }

// source says who is at the other end of a connection that was accepted: the address.
func source(c net.Conn) string {
	if remote, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return remote.IP.String()
	}
	return ""
}
