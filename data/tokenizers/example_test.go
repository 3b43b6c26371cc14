// SPDX-License-Identifier: Apache-2.0

package tokenizers_test

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

// Train a tokenizer on texts. Load reads the tokenizer.json of a model from HuggingFace instead.
func Example() {
	texts := func(yield func(string, error) bool) {
		_ = yield("slow slower slowest", nil) && yield("newest newest newest", nil)
	}
	tokenizer, err := tokenizers.Train(context.Background(), texts, tokenizers.TrainOptions{VocabSize: 270})
	if err != nil {
		panic(err)
	}
	ids, err := tokenizer.Encode("newest slower lowest")
	if err != nil {
		panic(err)
	}
	for _, id := range ids {
		token, err := tokenizer.Decode([]int32{id})
		if err != nil {
			panic(err)
		}
		fmt.Printf("%d %q\n", id, token)
	}
	// Output:
	// 261 "newest"
	// 268 " slower"
	// 220 " "
	// 260 "lo"
	// 258 "west"
}
