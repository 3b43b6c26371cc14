// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReachable(t *testing.T) {
	hosts := map[string][]string{"alpha": {"127.0.1.1"}, "beta": {"10.0.0.2"}, "gamma": {"::1", "fd00::3"}}
	lookup := func(name string) ([]string, error) {
		if hosts[name] == nil {
			return nil, errors.New("no such host")
		}
		return hosts[name], nil
	}
	for _, name := range []string{"beta", "gamma", "delta", "localhost", "127.0.0.1", "::1", "10.0.0.1"} {
		require.NoError(t, reachable(name, lookup), name)
	}
	require.EqualError(t, reachable("alpha", lookup),
		"MASTER_ADDR alpha is 127.0.1.1 on this host (see /etc/hosts), where no other host can reach it: want its "+
			"address on the network between the hosts")
}
