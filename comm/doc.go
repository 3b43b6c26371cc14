// SPDX-License-Identifier: Apache-2.0

// Package comm lets the ranks of a job exchange data: reductions, gathers, broadcasts, messages and barriers between
// goroutines of one process, or processes of one or several hosts. Packages trainer and accelerate use it; use it for
// your own parallel algorithm. Start with comm/local: its Run starts ranks as goroutines and gives each a [Group],
// whose methods, such as [Group.AllReduce], exchange the data.
//
// A Group is one rank's view of a set of ranks, all of which issue the same calls in the same order. Every call has a
// deadline, and the ranks compare what they were asked to do. The first error ends the group on every rank, so a
// mistake on one rank becomes a clear error on all of them, never a silent hang. Calls return a [Handle] immediately;
// wait for it before the buffer is used.
//
// An [Engine] moves the bytes: comm/local (goroutines), comm/shm (processes of one host) or comm/tcp (several hosts).
// Processes find each other with comm/rendezvous. comm/fake transfers nothing; it counts traffic for planning.
//
// The package is not a launcher (see accelerate/launch). It moves the memory of tensors (see [OfTensor]) and has no
// notion of models or gradients. It compresses nothing: see the communication hooks of accelerate/ddp. comm/tcp
// encrypts connections between hosts, unless rendezvous.TLS says otherwise; the other engines encrypt nothing.
//
// # The order of additions
//
// Floating-point addition is not associative, so the result of a reduction depends on its order. The specified
// order, which all engines follow unless Options.FastOrder is set, is a binary tree over ranks, per element:
// partners at distance 1, 2, 4, … are combined, rank i with rank i+d, and one without a partner is carried up.
// float32 and float64 are added in their own precision, bfloat16 and float16 in float32 with one rounding at
// the end; integers wrap around. How a buffer is cut into slices or chunks never matters. The result is the
// same on all ranks, bit for bit.
//
// # Writing an engine
//
// [New], [Engine], [Call], [Info], [Signature], [Memory] and the functions whose comments name engines are for engines.
// Programs need none of them. Every engine passes the test suite of package comm/commtest.
package comm
