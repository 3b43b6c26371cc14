// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged makes a cut link an error while data is on its way: without it, it is sent again for a quarter of
// an hour, and nothing asks whether the other host is there. It also ends a connection whose receiver does not read for
// so long: it is not for those that may have to wait.
func limitUnacknowledged(c *net.TCPConn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
