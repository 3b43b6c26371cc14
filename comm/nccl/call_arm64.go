// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package nccl

import (
	"runtime"

	"github.com/lockstep-ml/lockstep/internal/clib"
)

// initRank calls ncclCommInitRankConfig(comm, n, id, rank, config). The id of 128 bytes goes by the address of a copy.
func initRank(f, handle, n uintptr, id *[16]uintptr, rank, config uintptr) uintptr {
	copied := *id
	code := clib.Call(f, handle, n, clib.Address(&copied), rank, config)
	runtime.KeepAlive(&copied)
	return code
}
