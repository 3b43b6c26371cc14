// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/tensor"
)

// onRanks runs body on ranks, each with its group.
type onRanks func(n int, opts comm.Options, body func(g *comm.Group) error) error

// Engines between processes give the same bits.
func TestEngines(t *testing.T) {
	s := settings{parts: 4, inner: 2048, dropout: 0.1, recompute: true, steps: 4}
	for _, lower := range []tensor.DType{tensor.Invalid, tensor.BFloat16} {
		s.lower, s.on = lower, nil
		one := s.run(t, 1)
		for name, open := range map[string]func(*rendezvous.Job, comm.Options) (*comm.Group, error){"shm": shm.New,
			"tcp": tcp.New} {
			s.on = commtest.Connected(t, open)
			for _, ranks := range []int{2, 4} {
				require.Equal(t, one.hash, s.run(t, ranks).hash, "%s, %d ranks, %v", name, ranks, lower)
			}
		}
	}
}
