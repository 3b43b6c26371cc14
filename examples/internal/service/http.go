// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
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
	maxUnread    = 64 << 20         // bytes of a request that is too large, which are read so that its sender hears why
	shutdownTime = 10 * time.Second // for the requests that are under way at the end
)

// Handler answers POST /predict: decode makes an input of the body, b computes the output, and it goes back as JSON.
// An error of decode is the client's (400), and so is a body of more than 1 MiB (413). GET /healthz says that the
// service is up.
func Handler[In, Out any](b *Batcher[In, Out], decode func(body io.Reader) (In, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /predict", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			_, _ = io.CopyN(io.Discard, r.Body, maxUnread) // who still sends would get a reset in place of the answer
			reply(w, http.StatusRequestEntityTooLarge, map[string]string{
				"error": fmt.Sprintf("the body has more than %d bytes", large.Limit)})
			return
		}
		var in In
		if err == nil {
			in, err = decode(bytes.NewReader(body))
		}
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

// Object reads a body that is one JSON object into v. want says in the error what was expected.
func Object(body io.Reader, v any, want string) error {
	d := json.NewDecoder(body)
	d.UseNumber()
	var text json.RawMessage
	if err := d.Decode(&text); err != nil {
		return fmt.Errorf("want %s: %w", want, err)
	}
	if text[0] != '{' {
		return fmt.Errorf("want %s, got %.40s", want, text)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("want %s and nothing after it", want)
	}
	d = json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("want %s: %w", want, err)
	}
	return nil
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
		return fmt.Errorf("%w: want an address such as :8080 or 0.0.0.0:8080", err)
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
