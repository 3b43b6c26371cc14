// SPDX-License-Identifier: Apache-2.0

// Package ranks manages a process's rank in a job: its number, its connections, and the values and decisions it shares
// with other ranks. Accelerators embed [Ranks] and so have its methods. Start with [New], then [Ranks.Open]; [Locate]
// only reports the process's place.
//
// A mesh divides the ranks by role: ranks that read different data ([Ranks.DataRanks]), ranks that share a model's
// shards ([Ranks.ShardRanks]), and others. Only the mesh's axes determine these sets.
package ranks
