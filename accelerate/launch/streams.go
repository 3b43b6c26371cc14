// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// Streams chooses output streams of ranks, as torchrun's --redirects and --tee do.
type Streams struct {
	all   int         // bit mask for ranks that are not in ranks
	ranks map[int]int // by local rank
}

// The bits of Streams.
const (
	stdout = 1
	stderr = 2
)

// ParseStreams reads a bit mask for all ranks (0 none, 1 stdout, 2 stderr, 3 both) or one
// for some local ranks, "0:3,1:1"; the others have none.
func ParseStreams(text string) (Streams, error) {
	bad := func() (Streams, error) {
		return Streams{},
			fmt.Errorf("streams %q: want 0 (none), 1 (stdout), 2 (stderr), 3 (both), or one of these for each local "+
				"rank: 0:3,1:1", text)
	}
	if all, err := strconv.Atoi(text); err == nil {
		if all < 0 || all > stdout|stderr {
			return bad()
		}
		return Streams{all: all}, nil
	}
	s := Streams{ranks: map[int]int{}}
	for part := range strings.SplitSeq(text, ",") {
		rank, mask, ok := strings.Cut(part, ":")
		r, errR := strconv.Atoi(rank)
		m, errM := strconv.Atoi(mask)
		if _, twice := s.ranks[r]; !ok || errR != nil || errM != nil || r < 0 || m < 0 || m > stdout|stderr || twice {
			return bad()
		}
		s.ranks[r] = m
	}
	return s, nil
}

// has reports whether a stream of a local rank is chosen.
func (s Streams) has(localRank, stream int) bool {
	if m, ok := s.ranks[localRank]; ok {
		return m&stream != 0
	}
	return s.all&stream != 0
}

// any reports whether something is chosen.
func (s Streams) any() bool {
	for _, m := range s.ranks {
		if m != 0 {
			return true
		}
	}
	return s.all != 0
}
