// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// EnvDnn names the file of cuDNN, for one that is found under none of the usual names. The value "off" does without.
const EnvDnn = "LOCKSTEP_CUDNN"

// maxConvolutionWorkspace is what algorithms may have: those for matrix units turn operands round in it, which are
// several hundred MiB in the first layers of a network.
const maxConvolutionWorkspace = 1 << 30

// dnnLibrary is libcudnn: its graph API (cudnn_graph.h), in which an operation is a descriptor with attributes. The
// older calls for convolutions are deprecated since cuDNN 9.
type dnnLibrary struct {
	create, destroy, setStream, getVersion, errorString, lastError                    uintptr
	descCreate, descDestroy, descFinalize, setAttribute, getAttribute, backendExecute uintptr
}

// openDnn opens the library, once for the process.
var openDnn = sync.OnceValues(func() (*dnnLibrary, error) { return loadDnn(os.Getenv(EnvDnn)) })

// loadDnn opens a file, or, if it is "", what the machine has.
func loadDnn(file string) (*dnnLibrary, error) {
	files := []string{"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"}
	switch file {
	case "":
	case "off":
		return nil, fmt.Errorf("%w: %s is off", cuda.ErrNotFound, EnvDnn)
	default:
		files = []string{file}
	}
	lib, err := clib.OpenAny(files...)
	switch {
	case err != nil && file == "":
		return nil, fmt.Errorf("%w: want cuDNN 9, or its file in %s: %w", cuda.ErrNotFound, EnvDnn, err)
	case err != nil: // it was asked for by name
		return nil, fmt.Errorf("cuDNN of %s: %w", EnvDnn, err)
	}
	l := &dnnLibrary{}
	if err := lib.Bind(map[string]*uintptr{
		"cudnnCreate": &l.create, "cudnnDestroy": &l.destroy, "cudnnSetStream": &l.setStream,
		"cudnnGetVersion": &l.getVersion, "cudnnGetErrorString": &l.errorString,
		"cudnnGetLastErrorString": &l.lastError, "cudnnBackendCreateDescriptor": &l.descCreate,
		"cudnnBackendDestroyDescriptor": &l.descDestroy, "cudnnBackendFinalize": &l.descFinalize,
		"cudnnBackendSetAttribute": &l.setAttribute, "cudnnBackendGetAttribute": &l.getAttribute,
		"cudnnBackendExecute": &l.backendExecute,
	}); err != nil {
		return nil, fmt.Errorf("want cuDNN 9 or newer: %w", err)
	}
	return l, nil
}

// version is as 9.28.1.
func (l *dnnLibrary) version() string {
	v := clib.Call(l.getVersion)
	return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100)
}

// result makes an error of a status. What the library says of it belongs to the thread: the caller has locked it.
func (l *dnnLibrary) result(call string, code uintptr) error {
	if int32(code) == 0 {
		return nil
	}
	said := make([]byte, 2048)
	clib.Call(l.lastError, hostAddress(said), uintptr(len(said)))
	e := &cuda.Error{Call: call, Code: int(int32(code)), Name: clib.Text(clib.Call(l.errorString, code)),
		Msg: strings.TrimSpace(clib.Cut(said))}
	runtime.KeepAlive(said)
	return e
}

// isRefusal reports whether an error is the library's no to what it was asked for (statuses 2000 to 3999), which it
// says each time; others tell of trouble.
func isRefusal(err error) bool {
	e, ok := errors.AsType[*cuda.Error](err)
	return ok && e.Code >= 2000 && e.Code < 4000
}

// isUnsupported reports whether the library has nothing for what it was asked for (statuses 3000 to 3999).
func isUnsupported(err error) bool {
	e, ok := errors.AsType[*cuda.Error](err)
	return ok && e.Code >= 3000 && e.Code < 4000
}

// dnn is the library on a device. An algorithm is chosen once for each convolution, by the library's heuristics and
// never by measuring: so that a program computes the same again.
type dnn struct {
	lib    *dnnLibrary
	v      *device
	handle uintptr

	mu     sync.Mutex
	plans  map[cuda.Convolution]*dnnPlan
	stream uintptr // the handle's
	pack   pack
}

// pack is what one execution is given. It lies on the heap, which does not move.
type pack struct {
	ids       [3]int64
	operands  [3]uintptr
	workspace uintptr
}

func newDnn(lib *dnnLibrary, v *device) (cuda.Dnn, error) {
	n := &dnn{lib: lib, v: v, plans: map[cuda.Convolution]*dnnPlan{},
		pack: pack{ids: [3]int64{idX, idW, idY}}}
	err := v.Do(func() error { return lib.result("cudnnCreate", clib.Call(lib.create, clib.Address(&n.handle))) })
	if err != nil {
		return nil, fmt.Errorf("cuDNN %s: %w", lib.version(), err)
	}
	return n, nil
}

// plan finds or makes the plan of a convolution. n.mu is held, and the thread is the device's.
func (n *dnn) plan(c cuda.Convolution) (*dnnPlan, error) {
	p := n.plans[c]
	if p == nil {
		var err error
		if p, err = n.lib.choose(c, target{handle: n.handle}); err != nil && !errors.Is(err, cuda.ErrNoAlgorithm) {
			return nil, fmt.Errorf("%s %+v: %w", c.Direction, c, err)
		}
		n.plans[c] = p
	}
	if p.plan == 0 {
		return nil, fmt.Errorf("%s %+v: %w", c.Direction, c, cuda.ErrNoAlgorithm)
	}
	return p, nil
}

// Workspace is what the convolution's algorithm needs.
func (n *dnn) Workspace(c cuda.Convolution) (bytes int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	err = n.v.Do(func() error {
		p, err := n.plan(c)
		if err == nil {
			bytes = int(p.workspace)
		}
		return err
	})
	return bytes, err
}

// Convolve queues a convolution.
func (n *dnn) Convolve(s cuda.Stream, c cuda.Convolution, o cuda.ConvolutionOperands, workspace cuda.Ptr) error {
	own, ok := s.(*stream)
	if !ok {
		return errors.New("cudnnBackendExecute: a stream of another driver")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.v.Do(func() error {
		p, err := n.plan(c)
		if err != nil {
			return err
		}
		if n.stream != own.handle {
			if err := n.lib.result("cudnnSetStream", clib.Call(n.lib.setStream, n.handle, own.handle)); err != nil {
				return err
			}
			n.stream = own.handle
		}
		n.pack.operands = [3]uintptr{uintptr(o.X), uintptr(o.W), uintptr(o.Y)}
		n.pack.workspace = uintptr(workspace)
		if err := n.lib.execute(n.handle, p, &n.pack); err != nil {
			return fmt.Errorf("%s %+v: %w", c.Direction, c, err)
		}
		return nil
	})
}

// Close destroys everything.
func (n *dnn) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.v.Do(func() error {
		for _, p := range n.plans {
			p.discard()
		}
		n.plans = nil
		return n.lib.result("cudnnDestroy", clib.Call(n.lib.destroy, n.handle))
	})
}
