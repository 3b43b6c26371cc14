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

// ReplicaShard gives the shard of a rank when each model replica is spread over ranksPerReplica consecutive ranks
// (tensor × context × sequence parallel sizes): those ranks share one shard and get the same batches. It is an error if
// worldSize is not a multiple of ranksPerReplica, or the rank is outside.
func ReplicaShard(rank, worldSize, ranksPerReplica int) (Shard, error) {
	if err := (Shard{rank, worldSize}).Validate(); err != nil {
		return Shard{}, err
	}
	if ranksPerReplica < 1 || worldSize%ranksPerReplica != 0 {
		return Shard{}, fmt.Errorf("samplers: %d ranks per model replica, want a divisor of the world size %d",
			ranksPerReplica, worldSize)
	}
	return Shard{rank / ranksPerReplica, worldSize / ranksPerReplica}, nil
}

// Validate reports every fault of the shard, each with its value and what was wanted.
func (s Shard) Validate() error {
	var faults []error
	if s.WorldSize < 1 {
		faults = append(faults, fmt.Errorf("samplers: world size is %d, want at least 1", s.WorldSize))
	}
	if s.Rank < 0 || s.WorldSize >= 1 && s.Rank >= s.WorldSize {
		faults = append(faults, fmt.Errorf("samplers: rank is %d, want 0 to %d", s.Rank, s.WorldSize-1))
	}
	return errors.Join(faults...)
}

func (s Shard) rank() int64  { return int64(s.Rank) }
func (s Shard) world() int64 { return int64(s.WorldSize) }
