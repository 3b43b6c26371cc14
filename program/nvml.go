// SPDX-License-Identifier: Apache-2.0

//go:build cuda && nvml

package program

import _ "github.com/lockstep-ml/lockstep/integrations/nvml" // records have the figures of GPUs
