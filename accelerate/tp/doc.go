// SPDX-License-Identifier: Apache-2.0

// Package tp is tensor parallelism: it divides the matrices of a model among ranks, which compute the same samples
// together. It is for package accelerate. Start with [Divide], which takes a [Plan].
//
// A plan gives each matrix a [Style], by the path of its module. A colwise layer divides its output features, a rowwise
// layer its input features. A rowwise layer reads the parts of a colwise layer without communication, so a transformer
// block reduces over the ranks twice in its forward pass (rowwise layers) and twice in its backward pass (colwise
// layers), as in Megatron-LM (Shoeybi et al. 2019). Attention between them computes a part of the heads.
//
// The bits do not depend on the number of ranks. A sum that ranks share is formed in fixed parts ([Config].Parts),
// which are added in a binary tree (tensor.PartedSum): a rank adds its neighbouring parts, and comm.Group.AllReduce
// those of the ranks, in the same tree. The norm of gradients does not depend on cuts (strategy.NormOfAnyCut). Parts
// play the role that leaves have in data parallelism. A single rank adds its parts in the same trees.
//
// Parameters keep their names. A rank's part is a separate tensor, and [Division.Placement] is its place in the whole.
package tp
