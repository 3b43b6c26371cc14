// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// smiPatience is how long nvidia-smi may take. Without the persistence daemon it loads the driver first, which takes
// seconds on hosts with many GPUs.
const smiPatience = 30 * time.Second

// smi runs the program nvidia-smi for each reading.
type smi struct {
	path   string
	driver string
	gpus   []GPU
}

var (
	smiGPU   = []string{"index", "name", "uuid", "pci.bus_id", "compute_cap", "memory.total", "driver_version"}
	smiUsage = []string{"index", "utilization.gpu", "utilization.memory", "memory.used", "power.draw",
		"temperature.gpu"}
)

func openSMI() (Library, error) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, ErrNone
	}
	l := &smi{path: path}
	rows, err := l.query(smiGPU)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		index, err := strconv.Atoi(row[0])
		if err != nil {
			return nil, fmt.Errorf("nvidia-smi: index %q: want a number", row[0])
		}
		g := GPU{Index: index, Name: row[1], UUID: row[2], PCI: row[3], Capability: row[4]}
		if mib := number(row[5]); !math.IsNaN(mib) {
			g.Memory = int64(mib) << 20
		}
		l.gpus, l.driver = append(l.gpus, g), row[6]
	}
	slices.SortFunc(l.gpus, func(a, b GPU) int { return a.Index - b.Index })
	return l, nil
}

// Source is "nvidia-smi".
func (*smi) Source() string { return "nvidia-smi" }

// Driver is the version of the driver.
func (l *smi) Driver() string { return l.driver }

// GPUs lists the devices.
func (l *smi) GPUs() []GPU { return l.gpus }

// Usage asks for all devices at once.
func (l *smi) Usage() ([]Usage, error) {
	rows, err := l.query(smiUsage)
	if err != nil {
		return nil, err
	}
	usage := make([]Usage, len(l.gpus))
	for i, g := range l.gpus {
		usage[i] = unknown
		for _, row := range rows {
			if row[0] == strconv.Itoa(g.Index) {
				usage[i] = Usage{number(row[1]), number(row[2]), number(row[3]) * (1 << 20), number(row[4]),
					number(row[5])}
			}
		}
	}
	return usage, nil
}

// Close does nothing.
func (*smi) Close() error { return nil }

// query returns a row for each device.
func (l *smi) query(fields []string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), smiPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.path, "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits")
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer after %v", smiPatience)
		}
		// It says on the standard output that it cannot reach the driver.
		said := strings.Join(strings.Fields(stdout.String()+" "+stderr.String()), " ")
		return nil, fmt.Errorf("nvidia-smi: %w: %.200s", err, said)
	}
	r := csv.NewReader(&stdout)
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, len(fields), true
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w: want %d columns", err, len(fields))
	}
	if len(rows) == 0 {
		return nil, errors.New("nvidia-smi lists no device")
	}
	return rows, nil
}

// number reads a cell; "[N/A]" and similar texts are NaN.
func number(s string) float64 {
	x, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		return math.NaN()
	}
	return x
}
