// SPDX-License-Identifier: Apache-2.0

// Package ranks is this rank among the ranks of a job: which it is, as a launcher's environment or a program says, how
// they are connected, and what they tell each other and decide together. Accelerators embed [Ranks], so that programs
// have its methods there. Start with [New], then [Ranks.Open]; [Locate] finds a process's place alone.
//
// A mesh divides the ranks by role: those that see other data ([Ranks.DataRanks]), those over which a model is spread
// ([Ranks.ShardRanks]), and others. They follow from the mesh's axes alone.
package ranks
