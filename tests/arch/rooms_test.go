// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"slices"
	"testing"
)

// shardUsers may import accelerate/shard, beside accelerate itself: nobody else needs to know which strategy there is.
func shardUsers(f file) []string {
	top := topOf(f.dir)
	if f.test || top == "accelerate" || slices.Contains(lattice[top], anything) ||
		!slices.Contains(f.imports(), module+"/accelerate/shard") {
		return nil
	}
	return []string{fmt.Sprintf("%s imports accelerate/shard: want strategy.Shards, which every strategy can give",
		f.name)}
}

func TestStrategiesAreBehindTheirInterface(t *testing.T) {
	requireNone(t, shardUsers)
	const fault = " imports accelerate/shard: want strategy.Shards, which every strategy can give"
	requireBites(t, shardUsers, "trainer/a.go", imported("accelerate/shard"), "trainer/a.go"+fault)
	requireBites(t, shardUsers, "trainer/checkpointer/a.go", imported("accelerate/shard"),
		"trainer/checkpointer/a.go"+fault)
	requireBites(t, shardUsers, "accelerate/a.go", imported("accelerate/shard"), "")
	requireBites(t, shardUsers, "trainer/a_test.go", imported("accelerate/shard"), "")
	requireBites(t, shardUsers, "bench/a.go", imported("accelerate/shard"), "")
}
