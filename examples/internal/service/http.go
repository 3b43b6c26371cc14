// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	maxBody      = 1 << 20          // bytes of a request
	shutdownTime = 10 * time.Second // for the requests that are under way at the end
)

// Handler answers POST /predict: decode makes an input of the body, b computes the output, and it goes back as JSON.
// An error of decode is the client's (400). GET /healthz says that the service is up.
func Handler[In, Out any](b *Batcher[In, Out], decode func(body io.Reader) (In, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /predict", func(w http.ResponseWriter, r *http.Request) {
		in, err := decode(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			reply(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		out, err := b.Do(r.Context(), in)
		switch {
		case errors.Is(err, ErrClosed):
			reply(w, http.StatusServiceUnavailable, map[string]string{"error": err.Error()})
		case err != nil:
			reply(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
		default:
			reply(w, http.StatusOK, out)
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	return mux
}

// reply writes JSON. A client that has gone away does not hear it.
func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// Serve listens on addr, says so on out, and serves until ctx ends; then it takes no more connections, answers the
// requests that are under way and returns nil. An addr without a host, as ":8080", is that port of 127.0.0.1: only a
// host that is named, as "0.0.0.0:8080", opens the service to others.
func Serve(ctx context.Context, addr string, h http.Handler, out io.Writer) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%w; want an address such as :8080 or 0.0.0.0:8080", err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	fmt.Fprintf(out, "listening on http://%s; Ctrl-C ends\n", listener.Addr())
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	return server.Shutdown(last)
}
