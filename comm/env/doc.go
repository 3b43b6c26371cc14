// SPDX-License-Identifier: Apache-2.0

// Package env reads a process's place in a distributed job from its launcher's environment: its rank, the number of
// ranks, the ranks on the same host, and the address of rank 0. Packages accelerate, launch and rendezvous use it, and
// the command lockstep env prints its findings. Use it to write a launcher or to inspect a job that does not start:
// call [Detect] with os.LookupEnv.
//
// It recognises lockstep launch, torchrun, Open MPI, MPICH and Intel MPI, MVAPICH, Slurm, LSF's jsrun, Horovod and
// three kinds of Kubernetes jobs (TrainJob, PyTorchJob, Indexed Job); one file holds one of them. Every value of the
// [Environment] comes with the variable that it was read from. An incomplete or contradictory environment is an error
// that names the variables: a guessed rank would make the job hang, or several jobs train alone.
//
// The package is not a rendezvous: it opens no connection, resolves no name and changes nothing. It reads
// variables only through the function that the caller gives it.
package env
