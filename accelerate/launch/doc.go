// Package launch starts the ranks of a job as processes of this host, watches over them,
// and leaves nothing behind: what torchrun does for PyTorch, as a library.
//
// Run starts each rank in a process group of its own, with torchrun's environment. If one
// fails, the others are ended, and the group is started again as often as it may be; the
// error names the rank that failed first, how, and what it last said. Interrupting signals
// reach every rank; who does not end within the grace time is killed, with all processes
// it has started. If the launcher itself is killed, the kernel (on Linux) and the guard
// (see Guard) end the ranks.
//
// Several hosts run one launcher each, with the same token and each with its node rank.
// The launchers do not speak to each other: a failure reaches the other hosts through the
// ranks, whose launchers then restart them likewise.
//
// It is NOT a scheduler (it asks nobody for hosts), no rendezvous, and no elastic agent:
// the number of ranks is fixed. Windows is not supported: Run says so.
package launch
