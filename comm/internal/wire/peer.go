// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// ErrUser is returned by the dialling side if another user's process listens in the place of a rank of this host.
var ErrUser = errors.New("another user's process listens there")

// trusts returns an error if a connection that was dialled within this host ends at a process of another user than this
// one's, or root: the dialling side proves itself first, and such a process would get a proof to try tokens against.
// What the kernel does not tell is trusted, as a process on another host is.
func trusts(c net.Conn) error {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 || !WithinHost(c) {
		return nil
	}
	uid, ok := owner(remote, local)
	if !ok || uid == 0 || int(uid) == os.Geteuid() || uid == nobody && mapped() {
		return nil
	}
	return fmt.Errorf("%w: at %v, of user %d: want one of user %d, as all ranks of a host", ErrUser, remote, uid,
		os.Geteuid())
}

// source says who is at the other end of a connection that was accepted: the user, if the connection does not leave
// this host and the kernel tells, else the address.
func source(c net.Conn) string {
	remote, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	if WithinHost(c) {
		if uid, ok := owner(remote, c.LocalAddr().(*net.TCPAddr)); ok {
			return fmt.Sprint("user ", uid)
		}
	}
	return remote.IP.String()
}

// nobody is what the kernel calls users that have no number in this process's user namespace.
const nobody = 65534

// mapped reports whether this process is in a user namespace where some users have no number, as in a container without
// root.
func mapped() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	var first, outside, count uint64
	if _, e := fmt.Sscan(string(text), &first, &outside, &count); err != nil || e != nil {
		return true
	}
	return count != 1<<32-1
}
