// SPDX-License-Identifier: Apache-2.0

// Package all registers every reporter that Lockstep has, so that report_to can choose any of them. Import it for its
// side effect; a program that needs one reporter imports that one alone.
package all

import (
	_ "github.com/lockstep-ml/lockstep/integrations/jsonl"
	_ "github.com/lockstep-ml/lockstep/integrations/mlflow"
	_ "github.com/lockstep-ml/lockstep/integrations/opentelemetry"
	_ "github.com/lockstep-ml/lockstep/integrations/prometheus"
	_ "github.com/lockstep-ml/lockstep/integrations/tensorboard"
	_ "github.com/lockstep-ml/lockstep/integrations/trackio"
	_ "github.com/lockstep-ml/lockstep/integrations/wandb"
)
