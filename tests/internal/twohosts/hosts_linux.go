// SPDX-License-Identifier: Apache-2.0

// Package twohosts makes two network namespaces that stand for two hosts, and a wire between them whose frames a test
// can delay, hold and lose. It needs root, in a user namespace at least, and iproute2.
package twohosts

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Hosts are two network namespaces with a name and an address each, and a third one with the wire.
type Hosts struct {
	Names [2]string
	Wire  *Wire

	prefix string
	middle string // the wire's namespace
}

// UnavailableError says what cannot be done here.
type UnavailableError struct{ Err error }

// Error implements error.
func (e *UnavailableError) Error() string { return "no two hosts can be made here: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// New makes two hosts whose names begin with prefix, at most 10 characters. Each frame takes so long, and tap, if it is
// not nil, sees each that enters the wire, from several goroutines. The error is an [UnavailableError] where namespaces
// cannot be made.
func New(prefix string, delay time.Duration, tap func(frame []byte)) (h *Hosts, err error) {
	for _, tool := range []string{"ip", "unshare", "hostname"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, &UnavailableError{fmt.Errorf("%w (.ci/run tools installs it)", err)}
		}
	}
	h = &Hosts{prefix: prefix, Names: [2]string{prefix + "alpha", prefix + "beta"}, middle: prefix + "wire"}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := h.IP("netns add %s", h.middle); err != nil {
		return h, &UnavailableError{err}
	}
	for i, n := range h.Names {
		err := h.IP("netns add %s", n)
		if err == nil {
			err = h.IP("link add %s netns %s type veth peer name %s netns %s", h.Link(i), n, h.Link(i), h.middle)
		}
		if err != nil {
			return h, &UnavailableError{err}
		}
	}
	for i, n := range h.Names {
		for _, line := range []string{
			fmt.Sprintf("-n %s addr add %s/24 dev %s", n, Address(i), h.Link(i)),
			fmt.Sprintf("-n %s link set %s up", n, h.Link(i)),
			fmt.Sprintf("-n %s link set lo up", n),
			fmt.Sprintf("-n %s link set %s up", h.middle, h.Link(i)),
		} {
			if err := h.IP("%s", line); err != nil {
				return h, err
			}
		}
	}
	h.Wire, err = newWire(h.middle, [2]string{h.Link(0), h.Link(1)}, delay, tap)
	return h, err
}

// Close removes all that New has made.
func (h *Hosts) Close() error {
	var err error
	if h.Wire != nil {
		err = h.Wire.close()
		h.Wire = nil
	}
	for _, n := range append(h.Names[:], h.middle) {
		_ = exec.Command("ip", "netns", "del", n).Run() // there may be none
	}
	return err
}

// Link is the name of a host's network interface.
func (h *Hosts) Link(i int) string { return fmt.Sprintf("%s%c", h.prefix, 'a'+i) }

// Address is a host's IP address.
func Address(i int) string { return fmt.Sprintf("10.213.7.%d", i+1) }

// IP runs the ip command.
func (h *Hosts) IP(format string, a ...any) error {
	line := fmt.Sprintf(format, a...)
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, out)
	}
	return nil
}

// Command is the command line that runs another one on a host.
func (h *Hosts) Command(i int, line ...string) []string {
	return append([]string{"ip", "netns", "exec", h.Names[i], "unshare", "--uts", "sh", "-c",
		`hostname "$0" && exec "$@"`, h.Names[i]}, line...)
}
