// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
)

// IterablePlace is a place in an iterable dataset.
type IterablePlace struct {
	Iterable bool            `json:"iterable"` // true: tells it from the places of datasets with a length
	Epoch    int64           `json:"epoch"`
	Items    int64           `json:"items"`            // of the epoch's stream that are done with, over all ranks
	Windows  int64           `json:"windows"`          // of the epoch that are done with
	Position int64           `json:"position"`         // samples of all epochs that are done with
	Cursor   json.RawMessage `json:"cursor,omitempty"` // what the dataset's own cursor says (data.Seeker)
}

// maxPlace bounds the numbers of a place, far above those of any run.
const maxPlace = 1 << 53

// iterable is the loader of an iterable dataset.
type iterable struct {
	ctx     context.Context
	source  data.IterableSource
	options Options
	cut     cut

	at       IterablePlace // of the next window
	prefetch *prefetch     // nil before the first window, and after close
}

func (s *iterable) Next(left int64) (*Window, error) {
	if err := context.Cause(s.ctx); err != nil {
		return nil, err
	}
	if s.prefetch == nil {
		s.prefetch = newPrefetch(s.ctx, s.options, &cutter{src: s.source, cut: s.cut, place: s.at}, left)
	}
	out, after, err := s.prefetch.next()
	if err != nil {
		s.Close()
		return nil, err
	}
	s.at = after
	return out, nil
}

func (s *iterable) Close() {
	if s.prefetch != nil {
		s.prefetch.close()
		s.prefetch = nil
	}
}

// Fingerprint implements data.Fingerprinter.
func (s *iterable) Fingerprint() string {
	if f, ok := s.source.(data.Fingerprinter); ok {
		return f.Fingerprint()
	}
	return ""
}

func (s *iterable) Place() Place {
	p := s.at
	return Place{Iterable: &p}
}

func (s *iterable) Restore(place Place) error {
	p := place.Iterable
	if p == nil || !p.Iterable {
		return errors.New("feed: the place was saved with a dataset that has a length, this one is iterable")
	}
	for name, v := range map[string]int64{"epoch": p.Epoch, "items": p.Items, "windows": p.Windows,
		"position": p.Position} {
		if v < 0 || v > maxPlace {
			return fmt.Errorf("feed: the place's %s is %d: want 0 to %d", name, v, int64(maxPlace))
		}
	}
	if p.Items > p.Position || p.Windows > p.Items {
		return fmt.Errorf("feed: the place has %d windows of %d samples in its epoch and %d samples in all: "+
			"these do not go together", p.Windows, p.Items, p.Position)
	}
	s.Close()
	s.at = *p
	return nil
}

func (s *iterable) EpochAfter(w samplers.Window, planned int64) float64 {
	if w.LastOfEpoch {
		return float64(w.Epoch + 1)
	}
	return float64(w.Epoch) + min(float64(w.Number+1)/float64(planned), 1)
}
