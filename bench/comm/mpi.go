// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package main

import "github.com/lockstep-ml/lockstep/comm/mpi"

func init() { joins["mpi"] = mpi.Join }
