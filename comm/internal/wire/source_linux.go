// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes and places in a question to the kernel's socket diagnosis and in its answer (linux/inet_diag.h).
const (
	diagByFamily   = 20 // SOCK_DIAG_BY_FAMILY
	diagRequest    = unix.SizeofNlMsghdr + 56
	diagUserOffset = unix.SizeofNlMsghdr + 64
)

// owner asks the kernel for the user whose socket is at one end of a connection, from its own end to the other one's.
func owner(from, to *net.TCPAddr) (uid uint32, ok bool) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		return 0, false
	}
	if err := unix.Sendto(fd, diagnosis(from, to), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, false
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil || n < diagUserOffset+4 || binary.NativeEndian.Uint16(answer[4:]) != diagByFamily {
		return 0, false // an error in words of the kernel's: no such socket, not allowed
	}
	return binary.NativeEndian.Uint32(answer[diagUserOffset:]), true
}

// diagnosis is the question for one socket.
func diagnosis(from, to *net.TCPAddr) []byte {
	b := make([]byte, diagRequest)
	native := binary.NativeEndian
	native.PutUint32(b, diagRequest)
	native.PutUint16(b[4:], diagByFamily)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[unix.SizeofNlMsghdr:]
	family, source, target := byte(unix.AF_INET6), from.IP.To16(), to.IP.To16()
	if v4 := from.IP.To4(); v4 != nil && to.IP.To4() != nil {
		family, source, target = unix.AF_INET, v4, to.IP.To4()
	}
	r[0], r[1] = family, unix.IPPROTO_TCP
	native.PutUint32(r[4:], ^uint32(0)) // in any state
	binary.BigEndian.PutUint16(r[8:], uint16(from.Port))
	binary.BigEndian.PutUint16(r[10:], uint16(to.Port))
	copy(r[12:28], source)
	copy(r[28:44], target)
	native.PutUint64(r[48:], ^uint64(0)) // no cookie
	return b
}
