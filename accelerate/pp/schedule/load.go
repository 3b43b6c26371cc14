// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"strings"

	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Load is the schedule that a setting names: one of [Names], or a file whose name ends in .csv (see [ReadFile]). It
// has been checked (see [Schedule.Validate]). A file has its own shape, which must be the given one; zeros take the
// file's, and fewer micro-batches than the file's truncate the schedule.
func Load(name string, of Shape) (*Schedule, error) {
	if !strings.HasSuffix(name, ".csv") {
		s, err := New(name, of)
		if err != nil {
			return nil, err
		}
		return s, s.Validate()
	}
	s, err := ReadFile(name)
	if err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	f := faults{of: "schedule " + name}
	if ranks := len(s.Ranks); of.Ranks != 0 && of.Ranks != ranks {
		f.add("a table of %s: want %d", quantity.Of(ranks, "rank"), of.Ranks)
	}
	if want := of.StagesPerRank * len(s.Ranks); want != 0 && want != s.Stages() {
		f.add("a table of %s: want %d, %d per rank", quantity.Of(s.Stages(), "stage"), want, of.StagesPerRank)
	}
	if of.MicroBatches > s.MicroBatches {
		f.add("a table of %s: want at least %d", quantity.Of(s.MicroBatches, "micro-batch"), of.MicroBatches)
	}
	if err := f.err(); err != nil || of.MicroBatches == 0 {
		return s, err
	}
	return s.Truncate(of.MicroBatches)
}
