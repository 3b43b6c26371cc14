// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// errAlone is what is wrong with the use of a sharded parameter on one rank.
var errAlone = errors.New("the parameter is sharded, and this rank alone uses it: want the same on every rank (a " +
	"callback has the method EveryRank for that), within Summon")

// refuse panics, since the other ranks do not gather the parameters of the buffer.
func (f *flat) refuse() {
	panic(&tensor.Error{Op: "shard.Sharder.Alone", Msg: fmt.Sprintf("%s: %v", f.name, errAlone), Cause: errAlone})
}

// Alone implements strategy.Parameters. Where ranks share parameters f could use them, and is refused all the same, so
// that a program that works on one host works on several.
func (s *Sharder) Alone(f func() error) (err error) {
	if s.parameters {
		s.alone = true
		defer func() { s.alone = false }()
		return f()
	}
	if !s.shared {
		return f()
	}
	s.c.Sync()
	for _, flat := range s.all() {
		flat.whole.Unload()
		flat.whole.OnMissing(flat.refuse)
	}
	defer func() {
		for _, flat := range s.all() {
			flat.whole.OnMissing(nil)
			if again, ok := tensor.FromHost(s.c, flat.memory.Bytes, flat.dtype, flat.pack.Numel()); ok {
				flat.whole.Reload(again)
			}
		}
	}()
	return f()
}
