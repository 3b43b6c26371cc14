// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package hostmemory

// machineMemory is not known on this system.
func machineMemory() uint64 { return 0 }
