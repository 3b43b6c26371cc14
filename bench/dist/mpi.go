// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package main

import "github.com/lockstep-ml/lockstep/dist/mpi"

func init() { joins["mpi"] = mpi.Join }
