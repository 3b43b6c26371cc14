// SPDX-License-Identifier: Apache-2.0

// Package tp is tensor parallelism: it divides the matrices of a model among ranks, which compute the same samples
// together. It is for package accelerate. Start with [Divide], which takes a [Plan].
//
// A plan gives each matrix a [Style], by the path of its module. A colwise layer has its outputs' features divided, and
// a rowwise layer its inputs'. Behind a colwise layer, a rowwise one takes what each rank has: so a block of a
// transformer adds over the ranks twice in its forward pass (rowwise layers) and twice in its backward pass (colwise
// layers), as Megatron-LM does (Shoeybi et al. 2019). Attention between them computes a part of the heads.
//
// The bits do not depend on the number of ranks. A sum that ranks share is formed in fixed parts ([Config].Parts),
// which are added in a binary tree (tensor.PartedSum): a rank adds its neighbouring parts, and comm.Group.AllReduce
// those of the ranks, in the same tree. The norm of gradients does not depend on cuts (strategy.NormOfAnyCut). So parts
// are to tensor parallelism what leaves are to data parallelism. One rank with parts walks the trees by itself.
//
// Parameters keep their names. A rank's part is a tensor of its own, and [Division.Placement] tells which of the whole
// it is.
package tp
