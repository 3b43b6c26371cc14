// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
)

// sized is the loader of a dataset with a length.
type sized struct {
	stream  *samplers.Stream // at the next window
	ctx     context.Context
	source  data.Source
	options Options
	loader  *data.Loader // at the next window; nil: not loading
}

func (s *sized) Next(left int64) (_ *Window, err error) {
	before := s.stream.Clone()
	if s.loader == nil {
		s.loader, err = data.NewLoader(s.ctx, s.options.Ctx, s.source, data.StreamOrder(s.stream.Clone(), left),
			s.options.Loading)
		if err != nil {
			return nil, fmt.Errorf("feed: %w", err)
		}
	}
	out := new(Window)
	var ok bool
	if out.Window, ok = s.stream.Next(); !ok {
		return nil, io.EOF
	}
	for range out.Own {
		b, err := s.loader.Next()
		if err != nil {
			out.Free()
			s.Close()
			s.stream = before
			return nil, err
		}
		out.Batches = append(out.Batches, b)
	}
	return out, nil
}

func (s *sized) Close() {
	if s.loader != nil {
		s.loader.Close()
		s.loader = nil
	}
}

// Fingerprint implements data.Fingerprinter. A sample that cannot be read ends the run when its turn comes.
func (s *sized) Fingerprint() string {
	print, _ := data.Fingerprint(s.options.Ctx, s.source)
	return print
}

func (s *sized) Place() Place {
	return Place{Sized: s.stream.Place()}
}

func (s *sized) Restore(p Place) error {
	if p.Iterable != nil {
		return errors.New("feed: the place was saved with an iterable dataset, this one has a length")
	}
	s.Close()
	return s.stream.Restore(p.Sized)
}

func (s *sized) EpochAfter(w samplers.Window, _ int64) float64 { return s.stream.EpochAfter(w) }
