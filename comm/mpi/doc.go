// SPDX-License-Identifier: Apache-2.0

// Package mpi is the engine that sends over the cluster's own MPI library (Open MPI, MPICH or a derivative), on any
// network that the library supports. It is for programs that mpirun or srun starts; on one host comm/shm is faster.
//
// The library is opened when the program runs, so that one binary works with each of them. A program that imports the
// package for its effect, and is built with the tag mpi, has the engine under that name (ddp_backend mpi):
//
//	import _ "github.com/lockstep-ml/lockstep/comm/mpi"
//
// Without the tag the package is empty, and the program stays static.
//
// Only the bytes of collective calls and messages go over MPI, as non-blocking messages between ranks. Reductions are
// added up by the tree that package comm specifies, so that they have the bits of every other engine; in the fast order
// (comm.Options.FastOrder) MPI itself sums float32 and float64 over all ranks. Membership and failures travel over
// package rendezvous's connections: MPI has no deadlines, and does not report which rank died.
//
// A process cannot initialize MPI twice. Closing the last group finalizes MPI; a program that opens another group later
// calls Init before its first group, and Finalize at its end.
package mpi
