// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package nccl

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// initRank calls ncclCommInitRankConfig(comm, n, id, rank, config). The id of 128 bytes goes by the address of a copy.
func initRank(f, comm, n uintptr, id *[16]uintptr, rank, config uintptr) uintptr {
	copied := *id
	code, _, _ := purego.SyscallN(f, comm, n, at(&copied), rank, config)
	runtime.KeepAlive(&copied)
	return code
}
