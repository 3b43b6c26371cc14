// SPDX-License-Identifier: Apache-2.0

// Package clusters holds no code but tests of examples/clusters. They start examples/clm by Open MPI, by MPICH and by a
// Slurm of two virtual nodes, as the READMEs there do, and compare weights, kill ranks, requeue and cancel. Kubernetes
// manifests are compared with the schemas of their kinds.
//
// Except for the manifests, they run where LOCKSTEP_REQUIRE_CLUSTERS names openmpi, mpich or slurm: .ci/run clusters
// installs those and sets it.
package clusters
