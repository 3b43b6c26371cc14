//go:build !linux

package rendezvous

import "net"

// limitSilence does nothing: keep-alive alone watches the other host.
func limitSilence(*net.TCPConn) {}
