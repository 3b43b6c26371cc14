// SPDX-License-Identifier: Apache-2.0

package catalog

// CommHooks is the table of all communication hooks: the values of ddp_comm_hook, and what ddp_comm_state_option may
// hold for each. Each has a row in package accelerate/ddp.
var CommHooks = []struct {
	Name     string
	Settings Settings
}{
	{"no", nil}, {"fp16", nil}, {"bf16", nil},
	{"int8", Settings{{"block_size", nil, PositiveInt}}},
	{"power_sgd", Settings{{"matrix_approximation_rank", nil, PositiveInt}, {"start_powerSGD_iter", nil, Count},
		{"min_compression_rate", nil, Positive}, {"use_error_feedback", nil, Switch}, {"warm_start", nil, Switch},
		{"random_seed", nil, Count}}},
	{"top_k", Settings{{"density", nil, PositivePart}, {"use_error_feedback", nil, Switch}}},
}
