// SPDX-License-Identifier: Apache-2.0

// Package cp is context parallelism: the tokens of each sequence are divided among ranks, so that sequences may be too
// long for the memory of one. It is for package accelerate. Start with [NewLayout], which says which rank has which
// tokens, and [New], whose Passes run the forward and backward passes of a batch.
//
// A sequence is cut into a number of chunks (cp_chunks), a power of two. Under a causal mask a late chunk sees more
// keys than an early one, so each rank has pairs of an early and a late chunk: of 2c chunks on c ranks, rank i has
// chunks i and 2c−1−i (zig-zag). A model runs once for each chunk and is not changed. What it needs to know comes by
// nn.Ctx: positions travel with the tokens, and nn.Ctx.WithAttention lets the chunks of all ranks exchange keys and
// values. The passes of a rank's chunks are coroutines: each runs to its next attention, forward or backward, and when
// all of them are there the rank exchanges what they need, once for all of its chunks. Other ops that read several
// tokens, such as convolutions, see one chunk.
//
// # Attention
//
// A [Method] is how attention gets keys and values:
//
//   - [Gather], the default: each rank gathers the keys and values of all chunks. As each chunk attends, it gets those
//     that it may see. A causal model with grouped queries sends little: keys and values have few heads.
//   - [Ulysses]: an all-to-all turns the tokens of a rank into all tokens of some heads, and back. What a rank sends
//     falls with the number of ranks, which must divide the number of key heads.
//   - [Ring]: keys and values go round the ranks, and partial results are merged by their log-sum-exps. A rank holds
//     the keys and values of two ranks at most.
//
// # Bits
//
// For a given number of chunks, Gather and Ulysses have the same bits on any number of ranks, one included: each chunk
// is computed by itself, its gradients of keys, values and weights are summands of their own, and all sums over chunks
// are one binary tree. The leaves are the chunks in the order of [Layout.Order], in which each rank's chunks are a
// subtree; above it package comm adds the ranks. A chunk draws random numbers of its own, so dropout does not depend on
// the ranks either. Ring adds in the order in which keys arrive and agrees with them to rounding.
package cp
