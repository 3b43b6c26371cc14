// SPDX-License-Identifier: Apache-2.0

// Package cp is context parallelism: the tokens of each sequence are divided among ranks, so a sequence may exceed one
// rank's memory. It is for package accelerate. Start with [NewLayout], which assigns tokens to ranks, and [New], whose
// Passes run the forward and backward passes of a batch.
//
// A sequence is cut into a number of chunks (cp_chunks), a power of two. Under a causal mask a late chunk sees more
// keys than an early one, so each rank has pairs of an early and a late chunk: of 2c chunks on c ranks, rank i has
// chunks i and 2c−1−i (zig-zag). A model runs once for each chunk and is not changed. It gets positions and attention
// through nn.Ctx: positions travel with the tokens, and nn.Ctx.WithAttention lets the chunks of all ranks exchange keys
// and values. The passes of a rank's chunks are coroutines: each runs to its next attention, forward or backward, and
// when all have reached it the rank exchanges keys and values once for all of its chunks. Other ops that read several
// tokens, such as convolutions, see one chunk.
//
// # Attention
//
// A [Method] defines how attention gets keys and values:
//
//   - [Gather], the default: each rank gathers the keys and values of all chunks. As each chunk attends, it gets those
//     that it may see. A causal model with grouped queries sends little: keys and values have few heads.
//   - [Ulysses]: an all-to-all turns the tokens of a rank into all tokens of some heads, and back. The more ranks, the
//     less each sends. Their number must divide the number of key heads.
//   - [Ring]: keys and values go round the ranks, and partial results are merged by their log-sum-exps. A rank holds
//     the keys and values of two ranks at most.
//
// # Bits
//
// For a given number of chunks, Gather and Ulysses have the same bits on any number of ranks, one included: each chunk
// is computed separately, its gradients of keys, values and weights are separate summands, and all sums over chunks are
// one binary tree. The leaves are the chunks in the order of [Layout.Order], in which each rank's chunks are a subtree;
// above it package comm adds the ranks. Each chunk draws its own random numbers, so dropout does not depend on the
// ranks either. Ring adds in the order in which keys arrive and agrees with them to rounding.
package cp
