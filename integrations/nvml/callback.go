// SPDX-License-Identifier: Apache-2.0

// Package nvml adds the load, memory, power and temperature of the host's GPUs to the records of a run, from NVIDIA's
// management library. Programs of package program that are built with the tags cuda and nvml have a Callback in every
// run; in others, give the trainer one. Whatever the records go to, TensorBoard or a file, then has the figures; the
// lines of a display leave them out.
//
// It shows the host of rank 0, all of its GPUs, and all processes on them. It does not say how fast a kernel is: 100 %
// of utilization means that some kernel ran all the time.
package nvml

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/nvml"
)

// DefaultEvery is the time between two readings if Callback.Every is 0.
const DefaultEvery = time.Second

// Callback reads the GPUs while a run trains, on its own goroutine, and adds to each record for GPU i, counted as
// nvidia-smi does:
//
//   - gpu_i_utilization: percent of the time in which a kernel ran, mean since the record before;
//   - gpu_i_memory_used: bytes, the largest since then;
//   - gpu_i_power: watts, mean;
//   - gpu_i_temperature: °C, the largest.
//
// A figure that a GPU does not tell is left out. On a host without a driver of NVIDIA's the log says so once.
type Callback struct {
	callbacks.Base
	Every time.Duration // between two readings; 0 is DefaultEvery

	open func() (nvml.Library, error) // of tests; nil is nvml.Open

	mu    sync.Mutex
	sums  []sums // by GPU, since the last record
	gpus  []nvml.GPU
	err   error // why reading ended
	told  bool
	stop  chan struct{} // nil: nothing is read
	ended chan struct{}
}

// sums are those of readings; NaN is not among them.
type sums struct {
	utilization, power  float64
	utilized, powered   int // readings
	memory, temperature float64
}

// CallbackName returns the callback's name.
func (*Callback) CallbackName() string { return "nvml" }

// OnTrainBegin finds the GPUs and begins to read them.
func (c *Callback) OnTrainBegin(e *callbacks.Event) error {
	if c.Every < 0 {
		return fmt.Errorf("nvml: Every is %v: want a time above 0, or 0 for %v", c.Every, DefaultEvery)
	}
	_ = c.Close() // of a run that broke off
	open := c.open
	if open == nil {
		open = nvml.Open
	}
	l, err := open()
	if err != nil {
		e.Log.Warn("records have no GPU figures", "error", err)
		return nil
	}
	c.gpus, c.err, c.told = l.GPUs(), nil, false
	c.reset()
	c.stop, c.ended = make(chan struct{}), make(chan struct{})
	go c.read(l, c.stop, c.ended)
	return nil
}

// OnLog adds the figures.
func (c *Callback) OnLog(e *callbacks.Event) error {
	if c.stop == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range c.sums {
		put := func(name string, x float64) {
			if !math.IsNaN(x) && !math.IsInf(x, 0) {
				e.Record[fmt.Sprintf("gpu_%d_%s", c.gpus[i].Index, name)] = x
			}
		}
		put("utilization", s.utilization/float64(s.utilized))
		put("memory_used", s.memory)
		put("power", s.power/float64(s.powered))
		put("temperature", s.temperature)
	}
	c.reset()
	if c.err != nil && !c.told {
		c.told = true
		e.Log.Warn("GPU figures are no longer recorded", "error", c.err)
	}
	return nil
}

// OnTrainEnd ends the readings.
func (c *Callback) OnTrainEnd(*callbacks.Event) error { return c.Close() }

// Close ends the readings, also when a run broke off.
func (c *Callback) Close() error {
	if c.stop == nil {
		return nil
	}
	close(c.stop)
	<-c.ended
	c.stop = nil
	return nil
}

func (c *Callback) reset() {
	c.sums = make([]sums, len(c.gpus))
	for i := range c.sums {
		c.sums[i].memory, c.sums[i].temperature = math.Inf(-1), math.Inf(-1)
	}
}

// read reads until it is stopped or a reading fails.
func (c *Callback) read(l nvml.Library, stop, ended chan struct{}) {
	defer close(ended)
	every := c.Every
	if every == 0 {
		every = DefaultEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for err := error(nil); ; {
		var usage []nvml.Usage
		if usage, err = l.Usage(); err != nil {
			c.fail(errors.Join(err, l.Close()))
			return
		}
		c.add(usage)
		select {
		case <-stop:
			c.fail(l.Close())
			return
		case <-tick.C:
		}
	}
}

func (c *Callback) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *Callback) add(usage []nvml.Usage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, u := range usage {
		s := &c.sums[i]
		if !math.IsNaN(u.Utilization) {
			s.utilization += u.Utilization
			s.utilized++
		}
		if !math.IsNaN(u.Power) {
			s.power += u.Power
			s.powered++
		}
		if u.MemoryUsed > s.memory {
			s.memory = u.MemoryUsed
		}
		if u.Temperature > s.temperature {
			s.temperature = u.Temperature
		}
	}
}
