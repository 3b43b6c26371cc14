// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestValidate(t *testing.T) {
	good := Config{Program: "p", ProcsPerNode: 2}
	require.NoError(t, good.Validate())
	several := Config{Program: "p", ProcsPerNode: 2, Nodes: 2, NodeRank: 1, MasterAddr: "h", MasterPort: 1, Token: "t"}
	require.NoError(t, several.Validate())
	require.Equal(t, 2, good.WorldSize())
	require.Equal(t, 4, several.WorldSize())
	streams, err := ParseStreams("2:1")
	require.NoError(t, err)
	for _, row := range []struct {
		change func(c *Config)
		want   string
	}{
		{func(c *Config) { c.Program = "" }, "launch: no program to start"},
		{func(c *Config) { c.ProcsPerNode = 0 }, "launch: nproc_per_node is 0: want at least 1"},
		{func(c *Config) { c.Nodes = -1 }, "launch: nnodes is -1: want at least 1"},
		{func(c *Config) { c.NodeRank = 1 }, "launch: node_rank is 1: want 0..0"},
		{func(c *Config) { c.MasterPort = 65536 }, "launch: master_port is 65536: want 0..65535"},
		{func(c *Config) { c.MaxRestarts = -1 }, "launch: max_restarts is -1: want 0 or more"},
		{func(c *Config) { c.Cores = math.MinInt }, "launch: cores is -9223372036854775808: want at least 1"},
		{func(c *Config) { c.Grace = -time.Second }, "launch: grace is -1s: want more than 0"},
		{func(c *Config) { c.Settle = -1 }, "launch: settle is -1ns: want more than 0"},
		{func(c *Config) { c.MonitorInterval = -1 }, "launch: monitor_interval is -1ns: want more than 0"},
		{func(c *Config) { c.RunID = "../x" },
			`launch: run id is "../x": want up to 64 letters, digits, '.', '_' and '-'`},
		{func(c *Config) { c.ShowRanks = []int{2} }, "launch: local rank to show is 2: want 0..1"},
		{func(c *Config) { c.Tee = streams }, "launch: streams are named for local rank 2: want 0..1"},
		{func(c *Config) { c.Nodes, c.ProcsPerNode = 2, 0 }, "launch: nproc_per_node is 0: want at least 1\n" +
			"launch: nnodes is 2, and no master_addr is given: want the host of node 0\n" +
			"launch: nnodes is 2, and no master_port is given: want the same port on all hosts\n" +
			"launch: nnodes is 2, and there is no job token: want the same random text on all hosts, in " +
			"LOCKSTEP_JOB_TOKEN or in a file that LOCKSTEP_JOB_TOKEN_FILE names"},
	} {
		c := good
		row.change(&c)
		require.EqualError(t, c.Validate(), row.want)
	}
}

func TestParseStreams(t *testing.T) {
	s, err := ParseStreams("0:3,2:1")
	require.NoError(t, err)
	require.True(t, s.any())
	for _, row := range []struct {
		rank, stream int
		want         bool
	}{{0, stdout, true}, {0, stderr, true}, {1, stdout, false}, {2, stdout, true}, {2, stderr, false}} {
		require.Equal(t, row.want, s.has(row.rank, row.stream), "%+v", row)
	}
	s, err = ParseStreams("2")
	require.NoError(t, err)
	require.True(t, s.has(5, stderr))
	require.False(t, s.has(5, stdout))
	for _, none := range []string{"0", "0:0"} {
		s, err = ParseStreams(none)
		require.NoError(t, err)
		require.False(t, s.any())
	}
	for _, bad := range []string{"", "4", "-1", "x", "0:4", "0:1,0:2", "a:1", "-1:1", "0:1,"} {
		_, err := ParseStreams(bad)
		require.ErrorContains(t, err, "want 0 (none), 1 (stdout), 2 (stderr), 3 (both)", bad)
	}
}

func TestOverride(t *testing.T) {
	base := []string{"A=1", "B=2", "A=3", "C=4", "D"}
	require.Equal(t, []string{"B=2", "D", "A=x", "E=y"}, override(base, map[string]string{"E": "y", "A": "x"}, "C"))
	require.Equal(t, "3", lookup(base, "A"))
	require.Empty(t, lookup(base, "Z"))
	require.Len(t, base, 5)
	require.Equal(t, "A=1", base[0])
}
