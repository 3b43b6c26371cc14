// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Disk is what a rank keeps on disk while it trains; the zero value keeps everything in memory.
type Disk struct {
	params, state *Store
	moved         []tensor.Named
}

// OpenParams makes a store for parameters.
func (d *Disk) OpenParams(dir string) (err error) {
	d.params, err = New(dir)
	return err
}

// MoveParams moves parameters to the store.
func (d *Disk) MoveParams(c *tensor.Ctx, params []tensor.Named) error {
	for _, p := range params {
		to, err := d.params.Zeros(c, p.DType(), p.Shape()...)
		if err != nil {
			return fmt.Errorf("offload: parameter %s: %w", p.Name, err)
		}
		if err := tensor.Try(func() {
			old := tensor.Detach(p.Tensor)
			p.Rehome(c, to)
			c.Sync()
			old.Free()
		}); err != nil {
			return err
		}
		d.moved = append(d.moved, p)
	}
	return nil
}

// Zeros makes parameters in the store; nil: they are in memory.
func (d *Disk) Zeros() optim.Zeros {
	if d.params == nil {
		return nil
	}
	return d.params.Zeros
}

// KeepState keeps an optimizer's state in a store and returns its size in bytes.
func (d *Disk) KeepState(opt *optim.Optimizer, dir string) (bytes int64, err error) {
	if d.state, err = New(dir); err != nil {
		return 0, err
	}
	err = opt.KeepState(d.state.Zeros)
	return d.state.Bytes(), err
}

// Close brings parameters back to memory and gives the files up.
func (d *Disk) Close(c *tensor.Ctx) error {
	var errs []error
	for _, p := range d.moved {
		errs = append(errs, tensor.Try(func() { p.Rehome(c, tensor.Empty(c, p.DType(), p.Shape()...)) }))
	}
	c.Sync()
	for _, s := range []*Store{d.params, d.state} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	*d = Disk{}
	return errors.Join(errs...)
}
