// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"errors"
	"fmt"
)

// Shard names one rank's part of the data under the HuggingFace-compatible rules: part Rank of WorldSize.
type Shard struct {
	Rank      int // 0 ≤ Rank < WorldSize
	WorldSize int // W, parts
}

// Validate reports every fault of the shard, each with its value and what was wanted.
func (s Shard) Validate() error {
	var faults []error
	if s.WorldSize < 1 {
		faults = append(faults, fmt.Errorf("samplers: world size is %d: want at least 1", s.WorldSize))
	}
	if s.Rank < 0 || s.WorldSize >= 1 && s.Rank >= s.WorldSize {
		faults = append(faults, fmt.Errorf("samplers: rank is %d: want 0 to %d", s.Rank, s.WorldSize-1))
	}
	return errors.Join(faults...)
}

func (s Shard) rank() int64  { return int64(s.Rank) }
func (s Shard) world() int64 { return int64(s.WorldSize) }
