// SPDX-License-Identifier: Apache-2.0

// Package loopback reports whether the loopback interface is down, as it is in a new network namespace: processes of
// one host then cannot connect to each other, at any of the host's addresses, and the system's own errors ("cannot
// assign requested address", "network is unreachable", or a timeout) do not name the cause.
package loopback

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"
)

// Down returns an error that names the interface if address, HOST:PORT, belongs to this host and the loopback interface
// is down; nil otherwise.
func Down(address string) error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil // it cannot be told
	}
	fault := down(interfaces)
	if fault == nil {
		return nil
	}
	own, _ := net.InterfaceAddrs() // without them loopback addresses remain
	host, _, err := net.SplitHostPort(address)
	if err == nil && slices.ContainsFunc(resolve(host), func(ip net.IP) bool { return within(ip, own) }) {
		return fault
	}
	return nil
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

// resolving is how long a name service may take.
const resolving = 2 * time.Second

// resolve returns the addresses of a host, none if its name is unknown.
func resolve(host string) []net.IP {
	if ip := net.ParseIP(host); ip != nil {
		return []net.IP{ip}
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolving)
	defer cancel()
	ips, _ := net.DefaultResolver.LookupIP(ctx, "ip", host)
	return ips
}

// within reports whether an address is a loopback address or one of this host's own, whose connections take the
// loopback interface too.
func within(ip net.IP, own []net.Addr) bool {
	return ip.IsLoopback() || slices.ContainsFunc(own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}
