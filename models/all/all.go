// SPDX-License-Identifier: Apache-2.0

// Package all registers every architecture that Lockstep has, so that models.LoadPretrained and models.FromConfig find
// them. Import it for its side effect in programs that load models of any kind; a program for one architecture imports
// only that one.
package all

import (
	_ "github.com/lockstep-ml/lockstep/models/gpt2"
	_ "github.com/lockstep-ml/lockstep/models/mlp"
	_ "github.com/lockstep-ml/lockstep/models/resnet"
	_ "github.com/lockstep-ml/lockstep/models/transformer"
)
