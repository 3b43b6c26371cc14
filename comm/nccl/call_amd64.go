// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package nccl

import "github.com/lockstep-ml/lockstep/internal/clib"

// initRank calls ncclCommInitRankConfig(comm, n, id, rank, config). The id of 128 bytes goes by value: in memory,
// behind the arguments that have registers, of which there are six.
func initRank(f, handle, n uintptr, id *[16]uintptr, rank, config uintptr) uintptr {
	args := append([]uintptr{handle, n, rank, config, 0, 0}, id[:]...)
	return clib.Call(f, args...)
}
