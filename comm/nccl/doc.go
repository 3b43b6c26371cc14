// SPDX-License-Identifier: Apache-2.0

// Package nccl sends gradients and parameters between NVIDIA GPUs by NCCL, without copies through host memory. A
// program that imports the package for its effect, and is built with the tag cuda, has it for ranks on GPUs, goroutines
// and processes alike:
//
//	import _ "github.com/lockstep-ml/lockstep/comm/nccl"
//
// The library is opened when the program runs; without the tag the package is empty.
//
// It is a device engine: it stands beside a group's engine of the host, which synchronizes the ranks before each call,
// compares their calls, and names ranks that are missing, late or dead. NCCL does not. Sums are added up in the tree
// that package comm specifies, so that they have the bits of every other engine: ranks send each other their slices,
// each adds one up, and sends it around. Inside a host this takes the bytes of NCCL's own all-reduce. Between hosts it
// takes more, since each rank sends to each: 4.3 times the bytes of NCCL's ring on 2 hosts of 8 GPUs, 7 times on 8
// hosts. In the fast order (comm.Options.FastOrder) NCCL computes the sums. Choose it if steps wait for the network and
// the number of ranks stays the same.
//
// A communicator does not block, so that a lost rank ends no other: the group aborts it from any goroutine, also while
// a call is under way, and the calls return the group's error.
//
// Messages between two ranks, and tensors that lie on different devices of a rank, go through host memory.
package nccl
