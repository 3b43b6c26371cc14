// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package cuda

import (
	"errors"
	"fmt"
	"sync"

	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/cuda/libcuda"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
)

func init() { register(libcuda.New, tensor.RegisterDevice) }

// register gives the devices of a driver names; of a machine that has none, one name, which says why when it is opened.
func register(open func() (cuda.Driver, error), add func(name string, open func() (*tensor.Device, error))) {
	driver, err := open()
	n := 0
	if err == nil {
		n, err = driver.Devices()
	}
	if err == nil && n == 0 {
		err = errors.New("the NVIDIA driver shows this process no device: see CUDA_VISIBLE_DEVICES")
	}
	if err != nil {
		add("cuda", func() (*tensor.Device, error) { return nil, err })
		return
	}
	for i := range n {
		add(fmt.Sprintf("cuda:%d", i), sync.OnceValues(func() (*tensor.Device, error) {
			d, err := backend.Open(driver, i)
			if err != nil {
				return nil, err
			}
			return joint.Device[*tensor.Device](d), nil
		}))
	}
}
