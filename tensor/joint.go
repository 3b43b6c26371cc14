// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/joint"
)

func init() {
	joint.NewDevice = func(be backend.Backend) any { return newDevice(be) }
	joint.BackendOf = func(device any) backend.Backend { return device.(*Device).be }
	joint.MemoryOf = func(memory any) (backend.Backend, backend.Buffer, int, backend.Event) {
		m := memory.(*Memory)
		return m.dev.be, m.buf, m.at, m.ready
	}
}
