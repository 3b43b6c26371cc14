// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/trace"
)

// All listeners are told, in their order, until they stop; one may stop, or another begin, while they are told.
func TestListeners(t *testing.T) {
	var l trace.Listeners
	require.False(t, l.Active())
	l.Region(0, "unheard")()
	var told []string
	note := func(who string) func(trace.Span) {
		return func(s trace.Span) { told = append(told, fmt.Sprint(who, " ", s.Rank, " ", s.Name)) }
	}
	stopA := l.Listen(note("a"))
	stopB := l.Listen(note("b"))
	var stopC func()
	stopC = l.Listen(func(s trace.Span) {
		require.False(t, s.End.Before(s.Start))
		stopC()
		l.Listen(note("d"))
	})
	l.Region(3, "save")()
	stopA()
	l.Tell(trace.Span{Rank: 1, Name: "clip"})
	stopA()
	stopB()
	l.Tell(trace.Span{Name: "wait"})
	require.Equal(t, []string{"a 3 save", "b 3 save", "b 1 clip", "d 1 clip", "d 0 wait"}, told)
}

func ExampleListeners() {
	var l trace.Listeners // accelerate.Accelerator.Trace and callbacks.Event.Trace are those of a rank
	total := map[string]time.Duration{}
	stop := l.Listen(func(s trace.Span) { total[s.Name] += s.End.Sub(s.Start) })
	defer stop()
	begin := time.Now()
	l.Tell(trace.Span{Name: "backward", Start: begin, End: begin.Add(2 * time.Millisecond)})
	l.Tell(trace.Span{Name: "backward", Start: begin, End: begin.Add(3 * time.Millisecond)})
	fmt.Println(total["backward"])
	// Output: 5ms
}
