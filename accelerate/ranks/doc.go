// SPDX-License-Identifier: Apache-2.0

// Package ranks is this process's rank in a job: its number, from a launcher's environment or the program, its
// connections to the other ranks, and the values that ranks exchange and decisions they make together. Accelerators
// embed [Ranks] and so have its methods. Start with [New], then [Ranks.Open]; [Locate] finds a process's place alone.
//
// A mesh divides the ranks by role: those that see other data ([Ranks.DataRanks]), those over which a model is spread
// ([Ranks.ShardRanks]), and others. They follow from the mesh's axes alone.
package ranks
