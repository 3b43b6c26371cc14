// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"slices"
)

// reporterPackages are the reporters of package integrations, each in the package of its name.
var reporterPackages = []string{"jsonl", "tensorboard", "wandb"}

// otherTrackers are reporters of HuggingFace's Trainer and Accelerate that are not built, with what takes their place.
var otherTrackers = map[string]string{
	"aim":      "Run.track of its library",
	"azure_ml": "mlflow.log_metrics in its workspace",
	"clearml":  "Logger.report_scalar of its library",
	"comet_ml": "Experiment.log_metrics of its library",
	"dagshub":  "mlflow.log_metrics with the address of its repository",
	"dvclive":  "Live.log_metric of its library",
	"flyte":    "a Deck of the task that runs the program",
	"kubeflow": "a container beside the program",
	"neptune":  "Run.append of its library",
	"swanlab":  "swanlab.log of its library",
}

// codecarbon is no tracker of records.
const codecarbon = "codecarbon is refused: codecarbon monitor measures a run from beside it, and records have the " +
	"power of GPUs"

// reporterHint says why a program with other reporters cannot report to a name that HuggingFace or Lockstep has; "" of
// other names.
func reporterHint(name string, available []string) string {
	switch reads, other := otherTrackers[name]; {
	case other:
		return fmt.Sprintf("; %s is refused: report_to jsonl writes log.jsonl, whose lines %s takes", name, reads)
	case name == "codecarbon":
		return "; " + codecarbon
	case len(available) > 0 && slices.Contains(reporterPackages, name):
		return fmt.Sprintf("; %s is in integrations/%s, which this program does not import", name, name)
	}
	return ""
}
