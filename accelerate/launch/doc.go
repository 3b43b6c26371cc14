// SPDX-License-Identifier: Apache-2.0

// Package launch starts the ranks of a job as processes on this host and monitors them, as torchrun does for PyTorch.
// Most users run the command lockstep launch, which is this package with flags. Use the package to start jobs from a Go
// program: fill a [Config] and call [Run].
//
// Run starts each rank in a process group of its own, with torchrun's environment. If one fails, the others are ended,
// and the group is started again as often as the configuration allows. The error ([*FailureError]) names the rank that
// failed first, how it failed, and what it printed last. Interrupting signals reach every rank; a rank that does not
// end within the grace time is killed, with all processes it has started. If the launcher itself is killed, the guards
// (see [Guard]) end the ranks and what those have started. There are three guards, and one that dies is replaced. If
// all of them and the launcher are killed at the same moment, the kernel ends the processes, on Linux; docs/limits.md
// lists what it cannot know of.
//
// Each line of a rank appears behind its number. If Config.Stdout and Config.Stderr are a terminal, ranks find in
// LOCKSTEP_COLUMNS how long their lines may be, and those of package program keep to it.
//
// Several hosts run one launcher each, with the same token and each with its node rank. The launchers do not
// speak to each other: a failure reaches the other hosts through the ranks, whose launchers then restart them
// too.
//
// Config.Elastic lets hosts come and go: see [Elastic].
//
// The package is not a scheduler: it does not ask for hosts. Windows is not supported; Run says so.
package launch
