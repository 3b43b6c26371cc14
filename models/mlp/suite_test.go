// SPDX-License-Identifier: Apache-2.0

package mlp_test

import (
	"testing"

	"github.com/lockstep-ml/lockstep/models/modeltest"
)

func TestSuite(t *testing.T) {
	modeltest.Run(t, `{"model_type":"mlp","sizes":[3,5,2],"activation":"tanh"}`, 0)
	modeltest.Run(t, `{"model_type":"mlp","sizes":[3,5,4],"loss":"cross_entropy"}`, 0)
}
