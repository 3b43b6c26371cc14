// SPDX-License-Identifier: Apache-2.0

package data_test

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// exampleFlower is one sample: its fields become the tensors inputs [B,2] and labels [B].
type exampleFlower struct {
	Inputs [2]float32
	Labels int64
}

// A Slice and Stack make a Source, which is all that a trainer needs. A training loop reads it with a Loader.
func Example() {
	flowers := data.Slice[exampleFlower]{
		{[2]float32{5.1, 3.5}, 0},
		{[2]float32{7.0, 3.2}, 1},
		{[2]float32{6.3, 3.3}, 2},
	}
	source := data.NewSource(flowers, data.Stack[exampleFlower])

	batches, err := samplers.NewBatch(samplers.NewSequential(int64(source.Len())), 2, false)
	if err != nil {
		panic(err)
	}
	c := tensor.NewCtx(tensor.CPU())
	loader, err := data.NewLoader(context.Background(), c, source, data.EpochOrder(batches, 0),
		data.LoaderOptions{Workers: 2})
	if err != nil {
		panic(err)
	}
	defer loader.Close()
	for batch, err := range loader.All() {
		if err != nil {
			panic(err)
		}
		fmt.Println(batch.Tensors["inputs"].Shape(), tensor.ToSlice[int64](c, batch.Tensors["labels"]), batch.Count)
		batch.Free()
	}
	// Output:
	// [2 2] [0 1] 2
	// [1 2] [2] 1
}

// A language model is trained on blocks of one long sequence of tokens.
func ExampleTrainBlocks() {
	documents := [][]int32{{11, 12, 13}, {14, 15}, {16, 17, 18}}
	tokens := data.JoinDocuments(documents, 0) // token 0 stands between them
	blocks, err := data.TrainBlocks(tokens, 4)
	if err != nil {
		panic(err)
	}
	for i := range blocks.Len() {
		block, err := blocks.Get(i)
		if err != nil {
			panic(err)
		}
		fmt.Println(block)
	}
	// Output:
	// [0 11 12 13]
	// [0 14 15 0]
	// [16 17 18 0]
}
