// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/mlp" // registers the architecture
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// The config.json of a saved model says its architecture. [models.LoadPretrained] reads the weights beside it too.
func ExampleFromConfig() {
	config := `{"model_type": "mlp", "sizes": [4, 16, 3]}`
	model, err := models.FromConfig(nn.NewInit(tensor.CPU(), 42), []byte(config))
	if err != nil {
		panic(err)
	}
	fmt.Println(model.ModelType(), nn.NumParameters(model))
	// Output: mlp 131
}

// Any module is saved and loaded, also one that no config.json describes: make it again, then load its weights.
func ExampleLoadWeights() {
	layer := func(seed uint64) *nn.Linear {
		return nn.NewLinear(nn.NewInit(tensor.CPU(), seed), nn.LinearConfig{In: 2, Out: 1})
	}
	dir, err := os.MkdirTemp("", "weights")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "line.safetensors")

	saved := layer(1)
	if err := models.SaveWeights(saved, path); err != nil {
		panic(err)
	}
	again := layer(2) // other weights
	if err := models.LoadWeights(again, path); err != nil {
		panic(err)
	}
	c := tensor.NewCtx(tensor.CPU())
	fmt.Println(tensor.Item(c, saved.Bias.Tensor) == tensor.Item(c, again.Bias.Tensor))
	// Output: true
}
