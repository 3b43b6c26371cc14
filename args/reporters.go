// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/misspelt"
)

// reporterPackages are the reporters of package integrations, each in the package of its name.
var reporterPackages = []string{"jsonl", "mlflow", "opentelemetry", "prometheus", "tensorboard", "trackio", "wandb"}

// otherReporters are reporters of HuggingFace's Trainer and Accelerate that are refused, with what takes their place.
var otherReporters = map[string]string{
	"aim":        takesLines("Run.track of its library"),
	"azure_ml":   takesLines("mlflow.log_metrics in its workspace"),
	"clearml":    takesLines("Logger.report_scalar of its library"),
	"codecarbon": "codecarbon monitor measures a run from beside it, and records have the power of GPUs",
	"comet_ml":   takesLines("Experiment.log_metrics of its library"),
	"dagshub":    "report_to mlflow, with the address of its repository's MLflow server",
	"dvclive":    takesLines("Live.log_metric of its library"),
	"flyte":      takesLines("a Deck of the task that runs the program"),
	"kubeflow":   takesLines("a container beside the program"),
	"neptune":    takesLines("Run.append of its library"),
	"swanlab":    takesLines("swanlab.log of its library"),
}

func takesLines(what string) string {
	return "report_to jsonl writes log.jsonl, whose lines " + what + " takes"
}

// reporterHint says why a program with other reporters cannot report to a name that HuggingFace or Lockstep has, or to
// one of theirs that was likely meant; "" of other names.
func reporterHint(name string, available []string) string {
	if instead := otherReporters[name]; instead != "" {
		return fmt.Sprintf("; %s is refused: %s", name, instead)
	}
	if len(available) > 0 && slices.Contains(reporterPackages, name) {
		return fmt.Sprintf("; %s is in integrations/%s, which this program does not import", name, name)
	}
	refused := slices.Sorted(maps.Keys(otherReporters))
	near := misspelt.Nearest(name, slices.Concat(reporterPackages, refused))
	if slices.Contains(refused, near) {
		return "; did you mean " + near + "?" + strings.Replace(reporterHint(near, available), ";", "", 1)
	}
	return ""
}
