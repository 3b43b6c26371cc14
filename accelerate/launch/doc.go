// SPDX-License-Identifier: Apache-2.0

// Package launch starts the ranks of a job as processes on this host and monitors them, as torchrun does for PyTorch.
// Most users run the command lockstep launch, which is this package with flags. Use the package to start jobs from a Go
// program: fill a [Config] and call [Run].
//
// Run starts each rank in its own process group, with torchrun's environment. If one fails, Run ends the others and
// starts all again, as often as the configuration allows. The error ([*FailureError]) names the rank that failed first,
// how it failed, and what it printed last. Interrupting signals reach every rank; a rank that does not end within the
// grace time is killed, with all processes it has started. If the launcher itself is killed, the guards (see [Guard])
// end the ranks and their child processes. There are three guards, and one that dies is replaced. If all of them and
// the launcher are killed at the same moment, the kernel ends the processes, on Linux; docs/limits.md lists processes
// that it cannot find.
//
// Each line of a rank appears behind its number. If Config.Stdout and Config.Stderr are a terminal, ranks find in
// LOCKSTEP_COLUMNS how long their lines may be, and those of package program keep to it.
//
// Several hosts run one launcher each, with the same token and each with its node rank. The launchers do not
// communicate: ranks on other hosts notice a failure, and their launchers restart them too.
//
// Config.Elastic lets hosts come and go: see [Elastic].
//
// The package is not a scheduler: it does not allocate hosts. On Windows Run returns an error.
package launch
