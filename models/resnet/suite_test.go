// SPDX-License-Identifier: Apache-2.0

package resnet_test

import (
	"testing"

	"github.com/lockstep-ml/lockstep/models/modeltest"
)

func TestSuite(t *testing.T) {
	for _, kind := range []string{"basic", "bottleneck"} {
		t.Run(kind, func(t *testing.T) {
			modeltest.Run(t,
				`{"model_type":"resnet","num_channels":3,"embedding_size":4,"hidden_sizes":[4,8],"depths":[1,1],"layer_type":"`+kind+`"}`, 16)
		})
	}
}
