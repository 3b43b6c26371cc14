// SPDX-License-Identifier: Apache-2.0

// Package shm is the engine for ranks that are processes of one host: they reduce in memory that all of them
// have mapped. Packages trainer and accelerate choose it by themselves on one host. Use it directly with
// [Join], or with [New] and a job of package rendezvous.
//
// Memory from comm.Group.Alloc is reduced in place; ordinary memory goes through a staging area. On Linux, segments are
// anonymous (memfd), reserved when they are made, and opened by the other processes through /proc, so they have no name
// and vanish with the last process, even if it is killed. Where that is not possible they are files, unlinked as soon
// as all have mapped them; the free space of their folder is checked first. The control connection (see package
// comm/rendezvous) reveals the end of a process, so survivors return an error immediately.
//
// It is not for processes that cannot see each other's memory: those of several hosts, or of containers with their own
// process namespaces. Use comm/tcp there.
package shm
