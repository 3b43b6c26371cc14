// SPDX-License-Identifier: Apache-2.0

package failure

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
)

// The first failure counts, and the group hears of it once, whether it asks before or after.
func TestTheFirstFailureIsToldOnce(t *testing.T) {
	first := errors.New("first")
	var told []error
	listen := func(err error) { told = append(told, err) }
	s := New(2)
	s.OnFailure(listen)
	require.NoError(t, s.Err())
	require.True(t, s.Set(first))
	s.Tell(first)
	s.Tell(first)
	require.False(t, s.Set(errors.New("second")))
	require.Equal(t, first, s.Err())
	require.Equal(t, []error{first}, told)
	late := New(2)
	require.True(t, late.Set(first))
	late.Tell(first) // nobody listens yet
	late.OnFailure(listen)
	late.Tell(first)
	require.Equal(t, []error{first, first}, told)
}

// A rank that has left stands in the way of those who wait for it; a failure is the reason of all.
func TestObstacle(t *testing.T) {
	s := New(2)
	c := &comm.Call{Signature: comm.Signature{Op: comm.Barrier, Seq: 3, Group: "world"}}
	require.NoError(t, s.Obstacle(1, c))
	s.Gone(1, &comm.RankLostError{Rank: 5, GroupRank: 1, Cause: "it closed the group"})
	require.True(t, s.Left(1))
	require.NoError(t, s.Obstacle(0, c))
	require.EqualError(t, s.Obstacle(1, c),
		`comm: group "world": rank 5 (1 in the group) is lost: it closed the group (during barrier #3)`)
	boom := errors.New("boom")
	s.Set(boom)
	require.Equal(t, boom, s.Obstacle(1, c))
}
