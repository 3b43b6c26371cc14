// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

const secret = "a secret of this test alone"

// torchrunOn are the variables of a rank that torchrun started on one or two hosts of two ranks.
func torchrunOn(hosts, rank string, more map[string]string) map[string]string {
	v := map[string]string{
		"RANK": rank, "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": hosts,
		"MASTER_ADDR": "alpha", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "run",
		"TORCHELASTIC_USE_AGENT_STORE": "True",
	}
	if hosts == "1" {
		v["WORLD_SIZE"] = "2"
	}
	for name, value := range more {
		v[name] = value
	}
	return v
}

var (
	noShare   = map[string]string{"TORCHELASTIC_USE_AGENT_STORE": "False"}
	withToken = map[string]string{env.VarJobToken: secret}
)

func detected(t *testing.T, variables map[string]string) *env.Environment {
	t.Helper()
	e, err := env.Detect(env.Map(variables))
	require.NoError(t, err)
	return e
}

// How the ranks of each launcher meet, with a token and without.
func TestMeet(t *testing.T) {
	mpi := map[string]string{
		"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
		"OMPI_COMM_WORLD_LOCAL_SIZE": "2",
	}
	deepSpeed := map[string]string{
		"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7",
	}
	both := map[string]string{env.VarJobToken: secret, "TORCHELASTIC_USE_AGENT_STORE": "False"}
	for _, row := range []struct {
		name  string
		vars  map[string]string
		token string // "some": not the user's
		by    string // of the meeting; "" for none
	}{
		{"torchrun, one host", torchrunOn("1", "0", nil), "", "torchrun's store at alpha:29400"},
		{"torchrun, two hosts", torchrunOn("2", "0", nil), "", "torchrun's store at alpha:29400"},
		{"torchrun with a token", torchrunOn("1", "0", withToken), secret, "torchrun's store at alpha:29400"},
		{"torchrun that shares no store, one host", torchrunOn("1", "0", noShare), "", "the file "},
		{"torchrun that shares no store, two hosts", torchrunOn("2", "0", noShare), "some", ""},
		{"torchrun that shares no store, with a token", torchrunOn("2", "0", both), secret, ""},
		{"DeepSpeed, one host", deepSpeed, "", "the file "},
		{"mpirun, one host", mpi, "", "the file "},
	} {
		t.Run(row.name, func(t *testing.T) {
			token, meeting, err := meet(detected(t, row.vars))
			require.NoError(t, err)
			if row.token == "some" {
				require.Len(t, token, 32)
				require.NotEqual(t, secret, token)
			} else {
				require.Equal(t, row.token, token)
			}
			if row.by == "" {
				require.Nil(t, meeting)
			} else {
				require.Contains(t, meeting.String(), row.by)
			}
		})
	}
}

// Ranks of one job agree on what they derive, those of different jobs do not.
func TestMeetIsTheJobs(t *testing.T) {
	token := func(rank string, more map[string]string) string {
		v := torchrunOn("2", rank, noShare)
		for name, value := range more {
			v[name] = value
		}
		text, _, err := meet(detected(t, v))
		require.NoError(t, err)
		return text
	}
	want := token("0", nil)
	require.Equal(t, want, token("3", map[string]string{"TORCHELASTIC_RESTART_COUNT": "1"}),
		"hosts may count restarts differently")
	for name, value := range map[string]string{
		"TORCHELASTIC_RUN_ID": "another", "MASTER_PORT": "29401", "MASTER_ADDR": "beta", "WORLD_SIZE": "6",
	} {
		require.NotEqual(t, want, token("0", map[string]string{name: value}), name)
	}
	file := func(id string) string {
		_, m,
			err := meet(
			detected(t,
				torchrunOn("1", "0", map[string]string{"TORCHELASTIC_USE_AGENT_STORE": "False",
					"TORCHELASTIC_RUN_ID": id})))
		require.NoError(t, err)
		return m.String()
	}
	require.Equal(t, file("run"), file("run"))
	require.NotEqual(t, file("run"), file("another"))
}

// A job that cannot meet says so when its place is looked for, and names the variable.
func TestMeetWantsToken(t *testing.T) {
	slurm := map[string]string{
		"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEPID": "0",
		"SLURM_NTASKS_PER_NODE": "1",
		"SLURM_NODEID":          "1", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "a,b",
	}
	hand := map[string]string{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7"}
	const advice = "no job token: set LOCKSTEP_JOB_TOKEN, or LOCKSTEP_JOB_TOKEN_FILE to a file that only its owner " +
		"can read"
	for want, variables := range map[string]map[string]string{
		"2 ranks on several hosts, started by Slurm: " + advice:                                         slurm,
		"2 ranks on several hosts (if they are on one, set LOCAL_RANK and LOCAL_WORLD_SIZE): " + advice: hand,
		"LOCKSTEP_JOB_TOKEN or LOCKSTEP_JOB_TOKEN_FILE: the job token can be guessed: it has 5 bytes: want at least " +
			"24 random ones: make one with `openssl rand -hex 32`": torchrunOn("1", "0",
			map[string]string{env.VarJobToken: "short"}),
	} {
		_, _, err := meet(detected(t, variables))
		require.EqualError(t, err, want)
		for _, name := range []string{
			"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
			env.VarJobToken, env.VarJobTokenFile, env.VarLaunchID,
		} {
			t.Setenv(name, variables[name])
		}
		for name, value := range variables {
			t.Setenv(name, value)
		}
		_, err = Locate()
		require.EqualError(t, err, "accelerate: "+want)
		for name := range variables {
			t.Setenv(name, "")
		}
	}
}

// Where ranks wait for others: alpha is a name that means loopback on its own host.
func TestListen(t *testing.T) {
	lookup := func(name string) ([]string, error) {
		return map[string][]string{"alpha": {"127.0.1.1"}, "beta": {"10.0.0.2"}}[name], nil
	}
	const out = "10.0.0.1"
	known := map[string]string{env.VarJobToken: secret, "TORCHELASTIC_USE_AGENT_STORE": "False"}
	hand := map[string]string{env.VarJobToken: secret, "TORCHELASTIC_RUN_ID": ""}
	beta := map[string]string{"MASTER_ADDR": "beta"}
	const fault = "MASTER_ADDR alpha is 127.0.1.1 on this host"
	for _, row := range []struct {
		name            string
		vars            map[string]string
		listen, outward string
		address, peers  string // wanted: rank 0's, and Config.Listen
		fault           string
	}{
		{"one host", torchrunOn("1", "0", nil), "", out, "127.0.0.1:0", "", ""},
		{"one host, a known port", torchrunOn("1", "0", known), "", out, "alpha:29400", "", ""},
		{"a host's own name", torchrunOn("2", "0", nil), "", out, "10.0.0.1:0", out, ""},
		{"a host's own name, another rank", torchrunOn("2", "1", nil), "", out, "10.0.0.1:0", out, ""},
		{"a host's own name, a known port", torchrunOn("2", "0", noShare), "", out, ":29400", out, ""},
		{"a host's own name, a known port, another rank", torchrunOn("2", "1", noShare), "", out, "alpha:29400", out,
			""},
		{"told where", torchrunOn("2", "0", nil), "10.9.9.9", out, "10.9.9.9:0", "10.9.9.9", ""},
		{"a name for all", torchrunOn("2", "0", beta), "", out, "beta:0", "", ""},
		{"no network", torchrunOn("2", "0", nil), "", "", "", "", fault},
		{"not torchrun", torchrunOn("2", "0", hand), "", out, "", "", fault},
		{"not torchrun, another rank", torchrunOn("2", "1", hand), "", out, "alpha:29400", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := detected(t, row.vars)
			_, meeting, err := meet(e)
			require.NoError(t, err)
			c := rendezvous.Config{Meeting: meeting, Address: "alpha:29400", Listen: row.listen}
			err = listen(&c, e, lookup, func() string { return row.outward })
			if row.fault != "" {
				require.ErrorContains(t, err, row.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, row.address, c.Address)
			require.Equal(t, row.peers, c.Listen)
		})
	}
}

// outward is an address of this host, or none.
func TestOutward(t *testing.T) {
	if a := outward(); a != "" {
		require.NoError(t, reachable("this host", func(string) ([]string, error) { return []string{a}, nil }))
	}
}

// Place takes the token out of the environment, and a second call finds it all the same.
func TestPlaceTakesTheToken(t *testing.T) {
	for name, value := range torchrunOn("2", "0", map[string]string{
		env.VarJobToken: secret, "TORCHELASTIC_USE_AGENT_STORE": "False", env.VarJobTokenFile: "", env.VarLaunchID: "",
	}) {
		t.Setenv(name, value)
	}
	for range 2 {
		e, err := Locate()
		require.NoError(t, err)
		token, err := e.JobToken()
		require.NoError(t, err)
		require.Equal(t, secret, token)
		require.Empty(t, os.Getenv(env.VarJobToken))
	}
}
