// SPDX-License-Identifier: Apache-2.0

// Package proof is the command lockstep prove: it trains one small model on many arrangements of ranks, some of which
// lose ranks or change in the middle, and compares the bits of all. [Run] directs the runs, each of which is a process
// of this program, or several, that calls [Rank].
package proof
