// SPDX-License-Identifier: Apache-2.0

// Package mlflow reports runs to an MLflow server, by its REST API (2.0). Import it for its side effect, and set the
// argument report_to to mlflow. [Config] lists the variables that it reads, which are those of MLflow and of
// HuggingFace's reporter.
//
// Metrics have the names of the records, as HuggingFace's reporter gives them to MLflow: loss, eval_loss. The package
// sends numbers, the arguments and the model's configuration. It has no artifacts, models or nested runs, and writes no
// local store (file:, sqlite:): for that, run "mlflow server" over it.
package mlflow
