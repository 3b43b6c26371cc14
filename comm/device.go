// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"fmt"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

// DeviceEngine moves and combines the memory of devices between the ranks of a group, without a copy through host
// memory, as NCCL does. It works together with the group's [Engine], which connects the ranks and compares their
// signatures before each of its calls; so the engine names a rank that is missing, late or mistaken.
type DeviceEngine interface {
	// Describe names the transport, as "NCCL 2.27.3".
	Describe() string

	// Carries reports whether Run does the call for tensors on dev. It is the same on all ranks. Other calls go through
	// host memory.
	Carries(s Signature, dev *tensor.Device) bool

	// Run performs a collective call. in and out are nil if the rank has no input or output; they are the same memory
	// for operations in place. It calls Call.Queued when the work is queued: until then no other group of the rank runs
	// one, so that devices get the work of all groups in the order of the program. It returns when the work is done, a
	// *TimeoutError soon after the deadline, and returns soon after Abort.
	Run(c *Call, in, out *tensor.Memory) error

	// Abort makes running and later calls return.
	Abort(err error)

	// Close releases everything. The group is dead, or all ranks call it.
	Close() error
}

// NewDeviceEngine makes the device engine of a group. It makes no collective call: the ranks set it up through the
// engine in their first Run.
type NewDeviceEngine func(group string, control Engine) (DeviceEngine, error)

var deviceEngines = struct {
	sync.Mutex
	new map[string]NewDeviceEngine
}{new: map[string]NewDeviceEngine{}}

// RegisterDeviceEngine makes a device engine known to Options.Devices under a name. Packages call it from init. It
// panics if the name is taken.
func RegisterDeviceEngine(name string, f NewDeviceEngine) {
	deviceEngines.Lock()
	defer deviceEngines.Unlock()
	if deviceEngines.new[name] != nil {
		panic(fmt.Sprintf("comm: device engine %q is registered twice", name))
	}
	deviceEngines.new[name] = f
}

// HasDeviceEngine reports whether the program has a device engine of a name.
func HasDeviceEngine(name string) bool {
	deviceEngines.Lock()
	defer deviceEngines.Unlock()
	return deviceEngines.new[name] != nil
}

// newDevices is the device engine that the options ask for; nil for none.
func newDevices(e Engine, o Options) (DeviceEngine, error) {
	if o.Devices == "" || e.Size() == 1 {
		return nil, nil
	}
	deviceEngines.Lock()
	f := deviceEngines.new[o.Devices]
	deviceEngines.Unlock()
	if f == nil {
		return nil, fmt.Errorf("comm: group %q: no device engine %q is built into this program", o.Name, o.Devices)
	}
	return f(o.Name, e)
}

// Meet brings the ranks of a collective call together and compares what they called, as an engine does before it moves
// bytes. A group that has a device engine does so before each collective call, so that ranks of which one calls with
// tensors and another with host memory are told apart. It is for tests of device engines.
func Meet(e Engine, c *Call) error {
	n := e.Size()
	head := make([]byte, SignatureBytes*(n+1))
	mine, all := head[:SignatureBytes], head[SignatureBytes:]
	c.Encode(mine)
	meeting := Call{Signature: Signature{Seq: c.Seq, Op: AllGather, DType: dtype.Uint8, Count: SignatureBytes,
		Label: "what the ranks call", Group: c.Group, members: c.members}, In: mine, Out: all, Deadline: c.Deadline,
		Timeout: c.Timeout}
	switch err := e.Run(&meeting).(type) {
	case nil:
	case *TimeoutError:
		late := *err
		if late.Call == meeting.String() {
			late.Op, late.Label, late.Call = c.Op, c.Label, c.String()
		}
		return &late
	case *RankLostError:
		lost := *err
		if lost.Call == meeting.String() {
			lost.Call = c.String()
		}
		return &lost
	default:
		return err
	}
	signatures := make([][]byte, n)
	for r := range signatures {
		signatures[r] = all[r*SignatureBytes : (r+1)*SignatureBytes]
	}
	return Compare(c, signatures)
}

// OnDevice reports whether sums of tensors on dev stay on the device, so that no host memory is needed to stage them.
func (g *Group) OnDevice(dev *tensor.Device) bool {
	return g.devices != nil && g.devices.Carries(Signature{Op: AllReduce, DType: dtype.Float32}, dev)
}

// carried reports whether the device engine does a call: all of its tensors lie on one device that it knows.
func (g *Group) carried(c *Call) bool {
	if g.devices == nil || c.Op.PointToPoint() {
		return false
	}
	var dev *tensor.Device
	for _, m := range []*tensor.Memory{c.from, c.to} {
		if m == nil {
			continue
		}
		if onHost(m) || dev != nil && dev != m.Device() {
			return false
		}
		dev = m.Device()
	}
	return dev != nil && g.devices.Carries(c.Signature, dev)
}
