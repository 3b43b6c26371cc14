// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// shareAll ends the making of buffers that all ranks have together, and makes what products read of them, where that is
// another form.
func (s *Sharder) shareAll() error {
	if err := s.meet("parameters are shared"); err != nil || !s.options.Lower.IsHalf() {
		return err
	}
	if err := tensor.Try(func() {
		for _, f := range s.all() {
			f.round(s)
		}
	}); err != nil {
		return err
	}
	return s.meet("parameters are rounded")
}

// meet waits for all ranks, with what they have computed, where they have parameters together.
func (s *Sharder) meet(why string) error {
	if !s.shared {
		return nil
	}
	s.c.Sync()
	return s.group.Barrier(comm.Label(why)).Wait(context.Background())
}

// apart calls f while every rank has a copy of the parameters that are shared, and writes this rank's shard of it back.
func (s *Sharder) apart(f func() error) error {
	var mine []*tensor.Tensor
	if err := s.meet("parameters are copied"); err != nil {
		return err
	}
	if err := tensor.Try(func() {
		for _, flat := range s.all() {
			private := tensor.Empty(s.c, flat.dtype, flat.pack.Numel())
			for i, p := range flat.params {
				p.Rehome(s.c, flat.view(s.c, private, i))
			}
			mine = append(mine, private)
		}
	}); err != nil {
		return err
	}
	err := f()
	if e := s.meet("copies are complete"); err == nil {
		err = e
	}
	fault := tensor.Try(func() {
		for n, flat := range s.all() {
			if err == nil {
				tensor.CopyInto(s.c, flat.own, flat.shard(s, mine[n]))
			}
			for i, p := range flat.params {
				p.Become(s.c, flat.view(s.c, flat.whole.Tensor, i))
			}
			if flat.low.is() {
				flat.lend(s)
			}
			flat.written(s)
			s.c.Sync()
			mine[n].Free()
		}
	})
	if e := s.meet("parameters are shared"); err == nil {
		err = e
	}
	if err == nil {
		err = fault
	}
	return err
}

// all are the buffers of all units, frozen parameters' too.
func (s *Sharder) all() (list []*flat) {
	for _, u := range s.units {
		list = append(list, u.flats...)
	}
	return list
}
