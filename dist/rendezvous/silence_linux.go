package rendezvous

import (
	"net"

	"golang.org/x/sys/unix"
)

// silence is how long sent data may stay unacknowledged by the other host, in milliseconds.
const silence = 10_000

// limitSilence makes a cut link an error: without it, data on the way is retransmitted for a quarter of an hour.
func limitSilence(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, silence) })
}
