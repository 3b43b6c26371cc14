// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// WithDevices gives the ranks of a host devices of their own: of n names for tensor.OpenDevice, the rank that is number
// i on its host, a process or a goroutine, computes on the one at i modulo n. Ranks that get the same name share the
// device. WithDevice takes precedence.
func WithDevices(names ...string) Option {
	open := make([]func() (*tensor.Device, error), len(names))
	for i, name := range names {
		open[i] = sync.OnceValues(func() (*tensor.Device, error) { return tensor.OpenDevice(name) })
	}
	return func(a *Accelerator) { a.devices = open }
}

// openDevice chooses the rank's device. local is its number among the goroutines of the process; −1 if it is not one.
func openDevice(a *Accelerator, local int) error {
	switch {
	case a.dev != nil:
		return nil
	case len(a.devices) == 0:
		a.dev = tensor.CPU()
		return nil
	case local < 0 && a.processes != nil:
		local = a.processes.env.LocalRank
	case local < 0:
		local = a.rank
	}
	var err error
	if a.dev, err = a.devices[local%len(a.devices)](); err != nil {
		return fmt.Errorf("accelerate: device of local rank %d: %w", local, err)
	}
	return nil
}

// MoveModel moves the parameters and buffers of a model to the rank's device; those that are there stay. The tensors
// remain the same, for everyone who holds them. Call it before the optimizer is made, and when there are no gradients.
func MoveModel(a *Accelerator, model nn.Module) error {
	from := map[*tensor.Device]*tensor.Ctx{}
	var errs []error
	for _, p := range nn.Walk(model).State() {
		dev := p.Device()
		if dev == a.dev {
			continue
		}
		if from[dev] == nil {
			dev.Sync() // whoever wrote it
			from[dev] = tensor.NewCtx(dev).NoGrad()
		}
		if err := tensor.Try(func() { p.MoveTo(a.ctx, from[dev]) }); err != nil {
			errs = append(errs, fmt.Errorf("accelerate: parameter or buffer %s: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}
