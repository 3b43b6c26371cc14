// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// accelerators are the kinds of devices that auto prefers to the CPU.
var accelerators = []string{"cuda"}

// devices are those that the ranks of a host take in turn.
type devices struct {
	names []string
	open  []func() (*tensor.Device, error)
	auto  bool // the CPU takes the place of one that cannot be opened
}

func newDevices(names ...string) devices {
	d := devices{names: names}
	for _, name := range names {
		d.open = append(d.open, sync.OnceValues(func() (*tensor.Device, error) { return tensor.OpenDevice(name) }))
	}
	return d
}

// named are the devices of a name: one, all of a kind, or for "" those of the first kind of accelerators that the
// program has.
func named(device string) devices {
	if device == "" {
		for _, kind := range accelerators {
			if d := named(kind); len(d.names) > 1 || slices.Contains(tensor.DeviceNames(), d.names[0]) {
				d.auto = true
				return d
			}
		}
		return newDevices("cpu")
	}
	names := slices.DeleteFunc(tensor.DeviceNames(), func(name string) bool {
		return !strings.HasPrefix(name, device+":")
	})
	if len(names) == 0 {
		names = []string{device}
	}
	return newDevices(names...)
}

// WithDevices gives each rank of a host its device: of n names for tensor.OpenDevice, the rank that is number i on its
// host, a process or a goroutine, computes on the one at i modulo n. Ranks that get the same name share the device. It
// takes the place of the argument device; WithDevice takes precedence.
func WithDevices(names ...string) Option {
	list := newDevices(names...)
	return func(a *Accelerator) { a.devices = list }
}

// openDevice chooses the rank's device.
func (a *Accelerator) openDevice() error {
	if a.dev != nil {
		return nil
	}
	local := a.LocalRank()
	var err error
	if a.dev, err = a.devices.take(local, a.log); err != nil {
		return fmt.Errorf("accelerate: device of local rank %d: %w", local, err)
	}
	return nil
}

// take opens the device of a rank of the host.
func (d devices) take(local int, log *slog.Logger) (*tensor.Device, error) {
	i := local % len(d.names)
	dev, err := d.open[i]()
	if err != nil && d.auto {
		log.Warn("the device cannot be used: computing on the CPU", "device", d.names[i], "error", err)
		return tensor.CPU(), nil
	}
	return dev, err
}

// nccl is the device engine of NVIDIA's devices.
const nccl = "nccl"

// chooseDeviceEngine lets tensors of ranks on GPUs go from device to device, where the program has an engine for that
// and ddp_backend does not say otherwise.
func (a *Accelerator) chooseDeviceEngine() error {
	kind, _, _ := strings.Cut(a.dev.Name(), ":")
	use := a.plan.job.devices
	switch {
	case kind != "cuda" && use == deviceEngineAlways:
		return fmt.Errorf("accelerate: ddp_backend is nccl, and the rank computes on the device %s: want a GPU, or "+
			"ddp_backend auto", a.dev.Name())
	case kind == "cuda" && use != deviceEngineNever && comm.HasDeviceEngine(nccl):
		a.DeviceEngine = nccl
	}
	return nil
}

// shareDevices looks whether ranks of this process compute on one device. NCCL needs one for each: tensors then go
// through the host.
func shareDevices(ranks []*Accelerator) error {
	used := map[*tensor.Device]bool{}
	for _, a := range ranks {
		used[a.dev] = true
	}
	if len(used) == len(ranks) {
		return nil
	}
	for _, a := range ranks {
		if a.DeviceEngine != "" && a.plan.job.devices == deviceEngineAlways {
			return fmt.Errorf("accelerate: ddp_backend is nccl for %d ranks on %d devices: want one device for each "+
				"rank, or ddp_backend auto", len(ranks), len(used))
		}
		a.DeviceEngine = ""
	}
	return nil
}

// allowTF32 allows TF32 where the plan does. One rank says where it cannot be done.
func (a *Accelerator) allowTF32() {
	if a.plan.tf32 && !a.dev.AllowTF32(true) && a.IsMain() {
		a.log.Warn("tf32 has no effect: the device has no such mode", "device", a.dev.Name())
	}
}

// MoveModel moves the parameters and buffers of a model to the rank's device; those that are there stay. The tensors
// remain the same, for everyone who holds them. Call it before the optimizer is made, and when there are no gradients.
func (a *Accelerator) MoveModel(model nn.Module) error {
	from := map[*tensor.Device]*tensor.Ctx{}
	var errs []error
	for _, p := range nn.Walk(model).State() {
		dev := p.Device()
		if dev == a.dev {
			continue
		}
		if from[dev] == nil {
			dev.Sync() // whoever wrote it
			from[dev] = tensor.NewCtx(dev).NoGrad()
		}
		if err := tensor.Try(func() { p.MoveTo(a.ctx, from[dev]) }); err != nil {
			errs = append(errs, fmt.Errorf("accelerate: parameter or buffer %s: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}
