// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"os"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/comm/env"
)

// taken holds the token that was in the environment.
var taken struct {
	mu    sync.Mutex
	token string
	of    string // the job that it belongs to
}

// LookupEnv is os.LookupEnv, except that it takes the job's token out of the environment when it is first asked for a
// variable, so that programs which this process starts do not inherit it, and gives it from memory from then on.
func LookupEnv(name string) (value string, ok bool) {
	taken.mu.Lock()
	defer taken.mu.Unlock()
	if token := os.Getenv(env.VarJobToken); token != "" {
		taken.token, taken.of = token, jobInEnv()
		_ = os.Unsetenv(env.VarJobToken) // cannot fail for this name
	}
	if name != env.VarJobToken {
		return os.LookupEnv(name)
	}
	if taken.token == "" || taken.of != jobInEnv() { // the process has become another job's
		return "", false
	}
	return taken.token, true
}

// jobInEnv tells jobs apart by the variables that launchers set.
func jobInEnv() string {
	var all []string
	for _, name := range []string{env.VarWorldSize, env.VarMasterAddr, env.VarMasterPort, env.VarRunID,
		env.VarLaunchID} {
		all = append(all, os.Getenv(name))
	}
	return strings.Join(all, "\x00")
}
