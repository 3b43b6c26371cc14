// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"fmt"

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
