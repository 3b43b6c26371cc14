// SPDX-License-Identifier: Apache-2.0

// Package wandb reports runs to Weights & Biases. Import it for its side effect, and set the argument report_to to
// wandb. It writes a run's folder as the wandb library does, which "wandb sync" uploads. If there is an API key, it
// sends the run to the server as well: see [Config].
//
// A row has the names of HuggingFace's reporter, with train/global_step as the x-axis. The package sends numbers and
// texts, the arguments, the model's configuration and the number of its parameters. It has no artifacts, no gradients
// of wandb.watch, no media and no measurements of the system except those that the records have.
//
// The format of the file and the requests are those of wandb-core 0.31. Its own code is internal to its module.
package wandb
