// SPDX-License-Identifier: Apache-2.0

// Package prometheus serves the latest figures of a run to Prometheus while it trains. Import it for its side effect,
// and set the argument report_to to prometheus. The address is that of OpenTelemetry's exporter:
// OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT, by default localhost:9464; the path is /metrics.
//
// Each number of a record is a gauge with the record's key and the labels run and run_id: lockstep_loss,
// lockstep_eval_loss, lockstep_memory_rss_bytes. lockstep_step is the optimizer steps done, and
// lockstep_record_timestamp_seconds the time of the last record, by which an alert finds a run that stands still. There
// are no counters and no histograms, and nothing is pushed.
package prometheus

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// DefaultAddress is the address of OpenTelemetry's exporter.
const DefaultAddress = "localhost:9464"

func init() {
	callbacks.RegisterReporter("prometheus", func(*args.TrainingArguments) (callbacks.Callback, error) {
		host, port, _ := net.SplitHostPort(DefaultAddress)
		return New(net.JoinHostPort(cmp.Or(os.Getenv("OTEL_EXPORTER_PROMETHEUS_HOST"), host),
			cmp.Or(os.Getenv("OTEL_EXPORTER_PROMETHEUS_PORT"), port)))
	})
}

// New returns a reporter that serves at an address, as "localhost:9464". It opens nothing yet.
func New(address string) (callbacks.Callback, error) {
	_, port, err := net.SplitHostPort(address)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 {
		return nil, fmt.Errorf("the address is %q (OTEL_EXPORTER_PROMETHEUS_HOST and _PORT): want host:port, with a "+
			"port up to 65535", address)
	}
	return tracker.New(tracker.Options{Name: "prometheus", Callback: "prometheus",
		Open: func(tracker.Run) []tracker.Destination {
			return []tracker.Destination{&endpoint{address: address}}
		}}), nil
}

// endpoint serves one run.
type endpoint struct {
	address string
	server  *http.Server
	done    chan struct{} // when the server has ended
	figures figures
}

// Begin listens. An address that another process has is tried again.
func (e *endpoint) Begin(ctx context.Context, run tracker.Run) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", e.address)
	if err != nil {
		return err
	}
	e.figures.begin(run)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.figures.serve)
	e.server, e.done = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second},
		make(chan struct{})
	go func() {
		defer close(e.done)
		_ = e.server.Serve(listener) // until Close
	}()
	return nil
}

// Log takes the numbers of rows. Each stays until a later row has it.
func (e *endpoint) Log(_ context.Context, rows []tracker.Row) error {
	for _, r := range rows {
		e.figures.add(r)
	}
	return nil
}

// End does nothing: the endpoint ends with Close.
func (e *endpoint) End(context.Context, time.Time, tracker.Status) error { return nil }

// Close ends the endpoint.
func (e *endpoint) Close() error {
	if e.server == nil {
		return nil
	}
	err := e.server.Close()
	<-e.done
	return err
}
