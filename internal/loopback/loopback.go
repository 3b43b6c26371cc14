// SPDX-License-Identifier: Apache-2.0

// Package loopback tells whether the loopback interface is down, as it is in a new network namespace: processes of one
// host then cannot connect, and the system's own errors ("cannot assign requested address", "network is unreachable")
// do not name the cause.
package loopback

import (
	"fmt"
	"net"
)

// Down returns an error that names the interface if address, HOST:PORT, is a loopback address and the loopback
// interface is down; nil otherwise.
func Down(address string) error {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && !ip.IsLoopback() {
		return nil
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil // it cannot be told
	}
	return down(interfaces)
}

func down(interfaces []net.Interface) error {
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			if i.Flags&net.FlagUp != 0 {
				return nil
			}
			return fmt.Errorf("the loopback interface %s is down: want it up, as by ip link set %s up", i.Name, i.Name)
		}
	}
	return nil
}
