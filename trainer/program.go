// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Program says which reporters, engines and devices the running program has, by the packages that it imports. A loader
// that is told (args.Loader.ForProgram) reports a missing one together with all other faults of the command line:
//
//	loader := args.Bind(flags, a)
//	loader.ForProgram(trainer.Program())
func Program() args.Program {
	p := args.Program{Reporters: callbacks.ReporterNames(), Engines: rendezvous.EngineNames(),
		Devices: tensor.DeviceNames()}
	if comm.HasDeviceEngine(string(args.BackendNCCL)) {
		p.Engines = append(p.Engines, string(args.BackendNCCL))
	}
	return p
}
