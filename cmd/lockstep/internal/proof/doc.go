// SPDX-License-Identifier: Apache-2.0

// Package proof is the command lockstep prove: it trains one small model on many arrangements of ranks, some of which
// lose ranks or change in the middle, and compares the bits of all. [Job.Run] does a run, which is one process of this
// program, or several, that call [Rank].
package proof
