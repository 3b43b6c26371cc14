// SPDX-License-Identifier: Apache-2.0

// Package strategy is what package accelerate and its strategies know of each other: how the ranks of a job train one
// model together. Programs that save and load a model whose parameters are spread over the ranks use [Shards].
package strategy
