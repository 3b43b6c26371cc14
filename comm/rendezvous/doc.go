// SPDX-License-Identifier: Apache-2.0

// Package rendezvous brings the processes of one job together, before an engine of comm connects them. Package
// accelerate uses it. For your own job of processes, start each with torchrun's variables, or with a launcher that
// comm/env recognizes, get a [Config] from [FromEnv], call [Join], and give the [Job] to New of comm/shm or comm/tcp.
//
// It provides a store that one of the processes (or the launcher) serves, the addresses of all, and one control
// connection between each two, whose end means that the other process has ended. [Serve], [Dial] and the methods of
// [Job] that exchange and connect are for launchers and engines; [RegisterEngine] makes an engine known to the argument
// ddp_backend.
//
// Connections between hosts are TLS 1.3, unless [TLS] turns it off; those within a host are plain. Every connection
// begins with a handshake in which both sides prove that they know the job's token, the dialing side first. The proofs
// are bound to the keys of the connection, which excludes a man in the middle. Two jobs never meet, whatever ports they
// use, and a stranger can neither read nor disturb a job. Listeners are bound to the loopback interface unless a
// configuration names another. Frames are bounded, messages are JSON.
//
// Where no launcher tells all processes the store's address and the token, rank 0 announces them in a [Meeting]: a file
// that only its user can read, or the store that torchrun serves to its workers.
//
// It is NOT a launcher, starts no process and restarts none, and moves no tensors.
package rendezvous
