// SPDX-License-Identifier: Apache-2.0

// Package torchrun sets the environment of benchmark processes that are ranks of one job on this host. It starts none.
package torchrun

import (
	"fmt"
	"net"

	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Environment returns the variables that the ranks share: torchrun's names, which PyTorch reads too, with a free port
// and a token of the job's own. Each rank needs RANK and LOCAL_RANK besides.
func Environment(ranks int) ([]string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return []string{"MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port), fmt.Sprint("WORLD_SIZE=", ranks),
		fmt.Sprint("LOCAL_WORLD_SIZE=", ranks),
		env.VarJobToken + "=" + string(rendezvous.NewToken())}, l.Close()
}
