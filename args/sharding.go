// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// BatchSharding is what AcceleratorConfig says of batches under ShardingHuggingFace, in accelerate's terms.
type BatchSharding struct {
	// Split is split_batches: per_device_train_batch_size is the size of a batch that all ranks share, each taking its
	// slice. Otherwise whole batches are dealt to the ranks in turn.
	Split bool
	// Even is even_batches: the last round of an epoch is completed with samples from the epoch's head, so that all
	// ranks have the same number of batches of the same size. Iterable data are always completed.
	Even bool
}

// BatchSharding returns what AcceleratorConfig says, and false under the other shardings, which have no such settings.
func (a *TrainingArguments) BatchSharding() (s BatchSharding, ok bool) {
	if a.DataSharding != ShardingHuggingFace {
		return BatchSharding{}, false
	}
	split, _ := a.AcceleratorConfig["split_batches"].(bool)
	even, set := a.AcceleratorConfig["even_batches"].(bool)
	return BatchSharding{Split: split, Even: even || !set}, true
}

// batchRanks is the number of ranks that per_device_train_batch_size has to be multiplied with: 1 where they share it.
func (a *TrainingArguments) batchRanks(ranks int) int {
	if s, ok := a.BatchSharding(); ok && s.Split {
		return 1
	}
	return ranks
}

// acceleratorKeys lists the keys of accelerator_config with the one value that is built, nil for either.
var acceleratorKeys = map[string]struct {
	value any
	why   string
}{
	"split_batches":        {nil, ""},
	"even_batches":         {nil, ""},
	"non_blocking":         {nil, ""}, // nothing is copied to a GPU
	"dispatch_batches":     {false, "every rank reads its own batches"},
	"use_seedable_sampler": {true, "the order of samples follows from data_seed and the epoch"},
	"use_configured_state": {false, "an Accelerator has no state that programs share"},
}

// acceleratorFault says what was wanted of accelerator_config, or nothing.
func (a *TrainingArguments) acceleratorFault() (want string) {
	for _, key := range slices.Sorted(maps.Keys(a.AcceleratorConfig)) {
		rule, known := acceleratorKeys[key]
		if key == "gradient_accumulation_kwargs" {
			return "no " + key + ": the setting is gradient_accumulation_steps"
		}
		if !known {
			return fmt.Sprintf("keys from %s, not %s", strings.Join(slices.Sorted(maps.Keys(acceleratorKeys)), ", "),
				key)
		}
		v, isBool := a.AcceleratorConfig[key].(bool)
		switch {
		case !isBool:
			return key + " to be true or false"
		case rule.value != nil && v != rule.value:
			return fmt.Sprintf("%s %v: %s", key, rule.value, rule.why)
		case a.DataSharding != ShardingHuggingFace && (key == "split_batches" && v || key == "even_batches" && !v):
			return fmt.Sprintf("data_sharding %s with %s %v; data_sharding %s cuts batches for "+
				"each rank", ShardingHuggingFace, key, v, a.DataSharding)
		}
	}
	return ""
}
