// SPDX-License-Identifier: Apache-2.0

package cp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
)

// Engines between processes give the same bits, and the ring runs on them.
func TestEngines(t *testing.T) {
	for name, open := range map[string]func(*rendezvous.Job, comm.Options) (*comm.Group, error){
		"shm": shm.New, "tcp": tcp.New} {
		for _, method := range []*cp.Method{cp.Gather, cp.Ulysses, cp.Ring} {
			t.Run(name+"/"+method.String(), func(t *testing.T) {
				r := run{chunks: 4, method: method, length: 21}
				want, _, _ := r.on(t, 2)
				got := make([]bits, 2)
				require.NoError(t, commtest.Connected(t, open)(2, comm.Options{}, func(g *comm.Group) (err error) {
					got[g.Rank()], _, _, err = r.train(g)
					return err
				}))
				for rank := range got {
					require.Equal(t, want, got[rank], "rank %d", rank)
				}
			})
		}
	}
}
