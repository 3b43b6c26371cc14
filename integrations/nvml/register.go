// SPDX-License-Identifier: Apache-2.0

//go:build cuda && nvml

package nvml

import "github.com/lockstep-ml/lockstep/callbacks"

func init() { callbacks.RegisterDefault(func() callbacks.Callback { return &Callback{} }) }
