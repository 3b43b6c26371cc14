// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package cuda

import (
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/fake"
	"github.com/lockstep-ml/lockstep/internal/cuda/libcuda"
)

func init() {
	if os.Getenv(EnvDevice) == "" {
		return
	}
	driver, err := libcuda.New()
	if err != nil {
		fmt.Fprintln(os.Stderr, "no device:", err)
		os.Exit(1)
	}
	TestDriver = func(fake.Options) cuda.Driver { return driver }
}
