// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix && !linux

package mpi

// copiesBetweenProcesses is true: what other systems have, the library finds out.
func copiesBetweenProcesses() bool { return true }
