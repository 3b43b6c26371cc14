// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package nccl

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/nccl/engine"
	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/nccl"
)

// EnvLibrary names the file of the library, for one that is found under no usual name.
const EnvLibrary = "LOCKSTEP_NCCL_LIBRARY"

func init() {
	nccl.Open = sync.OnceValues(openLibrary)
	dist.RegisterDeviceEngine("nccl", engine.New)
}

// Codes of ncclResult_t.
const (
	success    = 0
	inProgress = 7
)

// library is libnccl.
type library struct {
	version int32

	getErrorString, getLastError, getUniqueID, initRankConfig, abort, asyncError, finalize, destroy uintptr
	groupStart, groupEnd, send, recv, allReduce, reduceScatter, allGather, broadcast                uintptr
}

// minVersion is 2.18: the first whose ncclConfig_t has all that config sets.
const minVersion = 21800

func openLibrary() (nccl.Library, error) {
	names := []string{"libnccl.so.2", "libnccl.so"}
	if s := os.Getenv(EnvLibrary); s != "" {
		names = []string{s}
	}
	lib, err := clib.OpenAny(names...)
	if err != nil {
		return nil, fmt.Errorf("NCCL is missing: %w; want libnccl.so.2 where the loader finds it, or its file in %s",
			err, EnvLibrary)
	}
	l := &library{}
	var version uintptr
	if err := lib.Bind(map[string]*uintptr{"ncclGetVersion": &version, "ncclGetErrorString": &l.getErrorString,
		"ncclGetLastError": &l.getLastError, "ncclGetUniqueId": &l.getUniqueID,
		"ncclCommInitRankConfig": &l.initRankConfig, "ncclCommAbort": &l.abort,
		"ncclCommGetAsyncError": &l.asyncError, "ncclCommFinalize": &l.finalize, "ncclCommDestroy": &l.destroy,
		"ncclGroupStart": &l.groupStart, "ncclGroupEnd": &l.groupEnd, "ncclSend": &l.send, "ncclRecv": &l.recv,
		"ncclAllReduce": &l.allReduce, "ncclReduceScatter": &l.reduceScatter, "ncclAllGather": &l.allGather,
		"ncclBroadcast": &l.broadcast}); err != nil {
		return nil, fmt.Errorf("NCCL: %w", err)
	}
	if err := l.call("ncclGetVersion", version, clib.Address(&l.version)); err != nil {
		return nil, err
	}
	if l.version < minVersion {
		return nil, fmt.Errorf("NCCL is %s, want at least 2.18", l.Version())
	}
	return l, nil
}

// Version is major.minor.patch.
func (l *library) Version() string {
	return fmt.Sprintf("%d.%d.%d", l.version/10000, l.version/100%100, l.version%100)
}

// call calls a function of the library. A call of a communicator that does not block may be in progress afterwards,
// which is no error.
func (l *library) call(name string, f uintptr, args ...uintptr) error {
	return l.result(name, 0, int32(clib.Call(f, args...)))
}

func (l *library) result(name string, comm uintptr, code int32) error {
	if code == success || code == inProgress {
		return nil
	}
	text := clib.Text(clib.Call(l.getErrorString, uintptr(code)))
	if more := strings.TrimSpace(clib.Text(clib.Call(l.getLastError, comm))); more != "" {
		text += ": " + more
	}
	return &cuda.Error{Call: name, Code: int(code), Name: text}
}

// UniqueID makes a name.
func (l *library) UniqueID() (nccl.ID, error) {
	id := new(nccl.ID)
	err := l.call("ncclGetUniqueId", l.getUniqueID, clib.Address(id))
	return *id, err
}

// config is ncclConfig_t as of NCCL 2.18: the library knows by the size which of its fields are given.
type config struct {
	size                                 uint64
	magic, version                       uint32
	blocking, cgaCluster, minCTA, maxCTA int32
	net                                  uintptr
	splitShare                           int32
	_                                    int32
}

const configMagic = 0xcafebeef

// Init makes a communicator that does not block, so that it can be given up.
func (l *library) Init(dev cuda.Device, n, rank int, id nccl.ID, over func() error) (nccl.Comm, error) {
	c := &comm{lib: l, dev: dev}
	const unset = math.MinInt32
	cfg := &config{magic: configMagic, version: minVersion, cgaCluster: unset, minCTA: unset, maxCTA: unset,
		splitShare: unset}
	cfg.size = uint64(unsafe.Sizeof(*cfg))
	handle := new(uintptr)
	var code uintptr
	err := dev.Do(func() error { // the device is the thread's current one
		words := (*[16]uintptr)(unsafe.Pointer(&id))
		code = initRank(l.initRankConfig, clib.Address(handle), uintptr(n), words, uintptr(rank), clib.Address(cfg))
		return nil
	})
	runtime.KeepAlive(cfg)
	if err != nil {
		return nil, err
	}
	c.handle = *handle
	if err := l.result("ncclCommInitRankConfig", 0, int32(code)); err != nil {
		return nil, err
	}
	if err := c.settle("ncclCommInitRankConfig", over); err != nil {
		_ = c.Abort()
		return nil, err
	}
	return c, nil
}

// comm is a communicator.
type comm struct {
	lib    *library
	dev    cuda.Device
	handle uintptr
	state  int32 // of the last look
}

// How often a communicator in progress is looked at, and how long its end may take.
const (
	look     = 100 * time.Microsecond
	patience = 30 * time.Second
)

// settle waits until the communicator is no longer in progress.
func (c *comm) settle(name string, over func() error) error {
	for {
		if err := c.look(name); err != nil {
			return err
		}
		if c.state != inProgress {
			return nil
		}
		if err := over(); err != nil {
			return err
		}
		time.Sleep(look)
	}
}

func (c *comm) look(name string) error {
	state := new(int32)
	if err := c.lib.call("ncclCommGetAsyncError", c.lib.asyncError, c.handle, clib.Address(state)); err != nil {
		return err
	}
	c.state = *state
	return c.lib.result(name, c.handle, c.state)
}

// AsyncError is what went wrong in work that was queued.
func (c *comm) AsyncError() error { return c.look("NCCL") }

// Group makes the calls of f one. The library counts groups by thread.
func (c *comm) Group(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.lib.call("ncclGroupStart", c.lib.groupStart); err != nil {
		return err
	}
	err := f()
	if e := c.lib.call("ncclGroupEnd", c.lib.groupEnd); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return c.queued("ncclGroupEnd")
}

// queued waits until what was called is queued on the stream, which is soon.
func (c *comm) queued(name string) error {
	deadline := time.Now().Add(patience)
	return c.settle(name, func() error {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is in progress after %v", name, patience)
		}
		return nil
	})
}

// on calls a function with the device current.
func (c *comm) on(name string, f uintptr, args ...uintptr) error {
	return c.dev.Do(func() error { return c.lib.call(name, f, args...) })
}

// Send queues a message.
func (c *comm) Send(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, to int) error {
	return c.on("ncclSend", c.lib.send, uintptr(p), uintptr(count), uintptr(dt), uintptr(to), c.handle, s.Handle())
}

// Recv queues taking a message.
func (c *comm) Recv(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, from int) error {
	return c.on("ncclRecv", c.lib.recv, uintptr(p), uintptr(count), uintptr(dt), uintptr(from), c.handle, s.Handle())
}

// AllReduce queues a sum.
func (c *comm) AllReduce(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType, op nccl.RedOp) error {
	return c.alone("ncclAllReduce", c.lib.allReduce, uintptr(in), uintptr(out), uintptr(count), uintptr(dt),
		uintptr(op), c.handle, s.Handle())
}

// ReduceScatter queues a sum of which each rank keeps a part.
func (c *comm) ReduceScatter(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType, op nccl.RedOp) error {
	return c.alone("ncclReduceScatter", c.lib.reduceScatter, uintptr(in), uintptr(out), uintptr(count), uintptr(dt),
		uintptr(op), c.handle, s.Handle())
}

// AllGather queues putting parts side by side.
func (c *comm) AllGather(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType) error {
	return c.alone("ncclAllGather", c.lib.allGather, uintptr(in), uintptr(out), uintptr(count), uintptr(dt), c.handle,
		s.Handle())
}

// Broadcast queues a copy of the root's.
func (c *comm) Broadcast(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, root int) error {
	return c.alone("ncclBroadcast", c.lib.broadcast, uintptr(p), uintptr(p), uintptr(count), uintptr(dt),
		uintptr(root), c.handle, s.Handle())
}

// alone is a call that is no part of a group.
func (c *comm) alone(name string, f uintptr, args ...uintptr) error {
	if err := c.on(name, f, args...); err != nil {
		return err
	}
	return c.queued(name)
}

// Abort ends queued work and gives the communicator up.
func (c *comm) Abort() error { return c.on("ncclCommAbort", c.lib.abort, c.handle) }

// Close waits for queued work and gives the communicator back.
func (c *comm) Close() error {
	if err := c.on("ncclCommFinalize", c.lib.finalize, c.handle); err != nil {
		return errors.Join(err, c.Abort())
	}
	if err := c.queued("ncclCommFinalize"); err != nil {
		return errors.Join(err, c.Abort())
	}
	return c.on("ncclCommDestroy", c.lib.destroy, c.handle)
}
