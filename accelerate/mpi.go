// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package accelerate

import _ "github.com/lockstep-ml/lockstep/dist/mpi" // ddp_backend mpi
