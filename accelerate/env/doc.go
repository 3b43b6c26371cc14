// Package env finds a process's place in a distributed job from the environment that its
// launcher left: rank, number of ranks, the same on this host, and where rank 0 is met.
//
// It recognises lockstep launch, torchrun, Open MPI, MPICH and Intel MPI, MVAPICH, Slurm,
// LSF's jsrun, Horovod and three kinds of Kubernetes jobs (TrainJob, PyTorchJob, Indexed
// Job); one file holds one of them. Every value comes with the variable that it was read
// from, so that "why does it think that" has an answer. An environment that is set by half
// or contradicts itself is an error that names the variables: guessing a rank ends in a job
// that hangs, or in several that train alone.
//
// It is NOT a rendezvous: it opens no connection, resolves no name and changes nothing. It
// reads variables only through the function that the caller hands in.
package env
