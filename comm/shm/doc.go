// SPDX-License-Identifier: Apache-2.0

// Package shm is the engine for ranks that are processes of one host: they reduce in memory that all of them
// have mapped. Packages trainer and accelerate choose it by themselves on one host. Use it directly with
// [Join], or with [New] and a job of package rendezvous.
//
// Memory from comm.Group.Alloc is reduced in place; ordinary memory goes through a staging area. On Linux, segments are
// anonymous (memfd), reserved when they are made, and opened by the other processes through /proc, so that they have no
// name and vanish with the last process, whatever ends it. Where that is not possible they are files that are unlinked
// as soon as all have mapped them; the room in their folder is checked first. A process's end is noticed by its control
// connection (see package comm/rendezvous), so that survivors return an error immediately.
//
// It is not for processes that cannot see each other's memory: those of several hosts, or of containers with
// process namespaces of their own. Use comm/tcp there.
package shm
