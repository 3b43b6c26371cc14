// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	shutdownTime = 30 * time.Second // for the requests that are under way at the end
	farewellTime = time.Second      // for those to hear that there was too little
)

// ErrRemote is the error of an address that other machines reach.
var ErrRemote = errors.New("other machines can reach the address")

// Listen serves h on addr until ctx ends; then it takes no more connections, and answers the requests that are under
// way for up to half a minute. ready is called with the address when it listens. An addr without a host, as ":8080", is
// of this machine alone; one that other machines reach is ErrRemote unless remote is set, since whoever reaches it may
// use the model. Without remote, requests for a host by a name of the internet are refused: their sender may be a page
// of that name, which leads to this machine (DNS rebinding).
func Listen(ctx context.Context, addr string, remote bool, h http.Handler, ready func(net.Addr)) error {
	listener, err := listen(ctx, addr, remote)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	if !remote {
		h = local(h)
	}
	requests, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	server := &http.Server{Handler: h, ReadHeaderTimeout: patience, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return requests }}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	ready(listener.Addr())
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(requests, shutdownTime)
	defer cancel()
	if server.Shutdown(last) != nil {
		end() // what still generates
		last, cancel = context.WithTimeout(context.WithoutCancel(ctx), farewellTime)
		defer cancel()
		if server.Shutdown(last) != nil {
			return server.Close()
		}
	}
	return nil
}

// local rejects requests whose Host may be a website.
func local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := hostname(r.Host); !private(name) {
			fail(w, &apiError{status: http.StatusForbidden, Type: invalidRequest, Message: fmt.Sprintf(
				"The request is for %.100s: want an address or localhost in its Host header, since only this machine "+
					"may ask", name)})
			return
		}
		h.ServeHTTP(w, r)
	})
}

// hostname is a host without its port.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// private reports whether no website can have the name: an address, a name without a domain, .localhost (RFC 6761) and
// .internal.
func private(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return net.ParseIP(name) != nil || !strings.Contains(name, ".") || strings.HasSuffix(name, ".localhost") ||
		strings.HasSuffix(name, ".internal")
}

// listen opens addr. Names are resolved before it is opened, so that what is checked is what listens.
func listen(ctx context.Context, addr string, remote bool) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: want an address such as :8080 or 127.0.0.1:8080", err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ips, err := (&net.Resolver{}).LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	if !remote && !ips[0].IP.IsLoopback() {
		return nil, fmt.Errorf("%w: want one of this machine alone, such as :%s, in place of %s", ErrRemote, port, addr)
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(ips[0].String(), port))
}
