// SPDX-License-Identifier: Apache-2.0

// Package tcp is the engine for ranks that are processes of several hosts. Packages trainer and accelerate
// choose it by themselves for several hosts. Use it directly with [Join], or with [New] and a job of package
// rendezvous. Connections between hosts are encrypted (see package comm/rendezvous).
//
// Each pair of ranks has a connection for collective calls and one for messages. A reduction is an exchange of
// slices, the specified tree over each rank's slice, and a gathering of the results, so that each rank sends
// and receives 2(n-1)/n of the buffer, as in a ring, and the additions keep the order that package comm
// specifies. Chunks overlap: while one is added the next is on its way. Under comm.Options.FastOrder large reductions
// go around a ring, from neighbour to neighbour (comm/internal/algorithms has the table).
//
// Every connection begins with the job's handshake (see package comm/rendezvous). A call's signature precedes its
// bytes, and both sides derive their number from it: received data never decides how much is read.
//
// Where hosts have equal numbers of ranks, a power of two, one after another, all-reduce, reduce-scatter,
// all-gather and broadcast have two levels: shared memory inside a host, and between hosts connections over
// which no byte goes twice. Processes of one host are better served by comm/shm.
package tcp
