// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
)

// figures are the latest numbers of a run, in Prometheus' text format 0.0.4.
type figures struct {
	mu     sync.Mutex
	labels string
	values map[string]float64 // by name
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (f *figures) begin(run tracker.Run) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.labels = fmt.Sprintf(`{run="%s",run_id="%s"}`, escapes.Replace(strings.ToValidUTF8(cmp.Or(run.Name, run.ID), "�")),
		run.ID)
	f.values = map[string]float64{}
}

func (f *figures) add(r tracker.Row) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range r.Record.Keys() {
		if x, ok := r.Record.Number(key); ok {
			f.values[gauge(key)] = x
		}
	}
	f.values[gauge("step")] = float64(r.Step)
	f.values[gauge("record_timestamp_seconds")] = float64(r.Time.UnixMilli()) / 1e3
}

var notInName = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// gauge is the name of a record's key. Memory is in bytes, and its name ends with that.
func gauge(key string) string {
	if strings.HasPrefix(key, "memory_") || strings.HasPrefix(key, "train_mem_") {
		key += "_bytes"
	}
	return "lockstep_" + notInName.ReplaceAllString(key, "_")
}

// serve answers a scrape.
func (f *figures) serve(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(f.text())
}

func (f *figures) text() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(f.values)) {
		fmt.Fprintf(&text, "# TYPE %s gauge\n%s%s %s\n", name, name, f.labels, number(f.values[name]))
	}
	return text.Bytes()
}

func number(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 0):
		return map[bool]string{true: "+Inf", false: "-Inf"}[x > 0]
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}
