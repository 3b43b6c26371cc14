// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/nvml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// library answers with one reading after the other; asked gets one value for each.
type library struct {
	readings [][]nvml.Usage
	asked    chan struct{}
	closed   bool
}

func (*library) Source() string   { return "test" }
func (*library) Driver() string   { return "1" }
func (*library) GPUs() []nvml.GPU { return []nvml.GPU{{Index: 0}, {Index: 3}} }

func (l *library) Usage() ([]nvml.Usage, error) {
	if len(l.readings) == 0 {
		return nil, errors.New("GPU is lost")
	}
	u := l.readings[0]
	l.readings = l.readings[1:]
	l.asked <- struct{}{}
	return u, nil
}

func (l *library) Close() error { l.closed = true; return nil }

func log() (*bytes.Buffer, *slog.Logger) {
	var b bytes.Buffer
	return &b, slog.New(slog.NewTextHandler(&b, nil))
}

func TestRecordsHaveTheFiguresOfGPUs(t *testing.T) {
	nan := math.NaN()
	only := func(temperature float64) nvml.Usage {
		return nvml.Usage{Utilization: nan, MemoryUtilization: nan, MemoryUsed: nan, Power: nan,
			Temperature: temperature}
	}
	l := &library{asked: make(chan struct{}), readings: [][]nvml.Usage{
		{{Utilization: 90, MemoryUsed: 5, Power: 600, Temperature: 50}, only(20)},
		{{Utilization: 100, MemoryUsed: 3, Power: 700, Temperature: 60}, only(10)},
		{{Utilization: 10, MemoryUsed: 1, Power: 100, Temperature: 40}, only(nan)},
	}}
	c := &Callback{Every: time.Millisecond, open: func() (nvml.Library, error) { return l, nil }}
	said, logger := log()
	require.NoError(t, c.OnTrainBegin(&callbacks.Event{Log: logger}))
	<-l.asked
	<-l.asked
	// The second reading is added before the third begins.
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.sums[0].utilized == 2
	}, 10*time.Second, time.Millisecond)
	record := callbacks.Record{}
	require.NoError(t, c.OnLog(&callbacks.Event{Log: logger, Record: record}))
	require.Equal(t, callbacks.Record{"gpu_0_utilization": 95.0, "gpu_0_memory_used": 5.0, "gpu_0_power": 650.0,
		"gpu_0_temperature": 60.0, "gpu_3_temperature": 20.0}, record)

	<-l.asked
	<-c.ended // the fourth reading fails
	record = callbacks.Record{}
	require.NoError(t, c.OnLog(&callbacks.Event{Log: logger, Record: record}))
	require.Equal(t, 10.0, record["gpu_0_utilization"])
	require.NotContains(t, record, "gpu_3_temperature")
	require.Contains(t, said.String(), "GPU is lost")
	require.True(t, l.closed)
	require.NoError(t, c.OnTrainEnd(nil))
	require.NoError(t, c.Close())
}

func TestHostWithoutGPU(t *testing.T) {
	said, logger := log()
	c := &Callback{open: func() (nvml.Library, error) { return nil, nvml.ErrNone }}
	require.NoError(t, c.OnTrainBegin(&callbacks.Event{Log: logger}))
	require.Contains(t, said.String(), "no NVIDIA driver")
	record := callbacks.Record{}
	require.NoError(t, c.OnLog(&callbacks.Event{Log: logger, Record: record}))
	require.Empty(t, record)
	require.NoError(t, c.Close())
	require.ErrorContains(t, (&Callback{Every: -1}).OnTrainBegin(&callbacks.Event{Log: logger}), "Every is -1ns")
}
