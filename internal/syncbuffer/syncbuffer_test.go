// SPDX-License-Identifier: Apache-2.0

package syncbuffer_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

// Lines of several writers stay whole, and can be read meanwhile.
func TestWritersAndAReader(t *testing.T) {
	var b syncbuffer.Buffer
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				fmt.Fprintln(&b, "line")
			}
		})
	}
	for read := ""; len(read) < 4*100*len("line\n"); {
		now := b.String()
		require.True(t, strings.HasPrefix(now, read))
		read = now
	}
	writers.Wait()
	require.Equal(t, strings.Repeat("line\n", 400), b.String())
}
