// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Save weights and a state, and load the newest checkpoint, as a training loop without the Trainer does.
func Example() {
	dir, err := os.MkdirTemp("", "lockstep")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx, c := context.Background(), tensor.NewCtx(tensor.CPU())
	store := &checkpoint.Store{Dir: dir}

	weights := []tensor.Named{{Name: "w", Tensor: tensor.FromSlice(c, []float32{1, 2, 3}, 3)}}
	parts := []checkpoint.Part{
		{Name: "model.safetensors", Write: func(w io.Writer) error { return checkpoint.SaveTensors(c, w, weights) }},
		checkpoint.BytesPart("state.json", []byte(`{"epoch": 2}`)),
	}
	if _, err := store.Save(ctx, 500, checkpoint.Content{RunID: "run-1", Parts: parts}); err != nil {
		panic(err)
	}

	newest, err := store.Latest(ctx) // checkpoint.ErrNone if there is none
	if err != nil {
		panic(err)
	}
	var state struct{ Epoch int }
	if err := newest.ReadJSON("state.json", &state); err != nil {
		panic(err)
	}
	set, err := newest.OpenTensors("model")
	if err != nil {
		panic(err)
	}
	defer set.Close()
	saved, _ := set.Lookup("w")
	data, err := saved.Read()
	if err != nil {
		panic(err)
	}
	w := tensor.FromBytes(c, data, saved.DType, saved.Shape...)
	fmt.Println(newest.Name(), state.Epoch, tensor.ToSlice[float32](c, w))
	// Output: checkpoint-500 2 [1 2 3]
}
