// SPDX-License-Identifier: Apache-2.0

// Package distributed holds no code but tests: they start examples/clm and examples/vision on several ranks, as
// goroutines, under lockstep launch and as plain processes with torchrun's variables, and
// kill, stop, interrupt and disturb them. They compare what is on the disk bit for bit, read
// what is printed, and look for what is left behind. What only the packages themselves can
// see is tested there.
//
// Processes are found in /proc, so that all except the comparisons need Linux. Two hosts are
// two network namespaces, which only root can make.
package distributed
