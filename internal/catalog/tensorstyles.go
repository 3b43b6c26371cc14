// SPDX-License-Identifier: Apache-2.0

package catalog

// TensorStyles are how tensor parallelism divides layers, by transformers' names; accelerate/tp describes them.
var TensorStyles = []string{"colwise", "rowwise", "packed_colwise", "colwise_gather_output", "rowwise_split_input",
	"embedding_rowwise", "sequence_parallel", "replicated_with_grad_allreduce", "replicate"}

// UnbuiltTensorStyles are the other styles of transformers.
var UnbuiltTensorStyles = []string{"all_reduce", "colwise_rep", "embedding_colwise", "local_params", "mla_kv_a_proj",
	"moe_identity_expert", "moe_tp_experts", "packed_rowwise", "rowwise_rep"}
