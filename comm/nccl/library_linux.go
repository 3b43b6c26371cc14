// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package nccl

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/nccl/engine"
	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/nccl"
)

// EnvLibrary names the file of the library, for one that is found under no usual name.
const EnvLibrary = "LOCKSTEP_NCCL_LIBRARY"

func init() {
	nccl.Open = sync.OnceValues(openLibrary)
	comm.RegisterDeviceEngine("nccl", engine.New)
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

	mu   sync.Mutex
	open map[*communicator]bool // communicators that were not given back: NCCL may write to their cells
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
		return nil, fmt.Errorf("NCCL is missing: %w: want libnccl.so.2 where the loader finds it, or its file in %s",
			err, EnvLibrary)
	}
	l := &library{open: map[*communicator]bool{}}
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
		return nil, fmt.Errorf("NCCL is %s: want at least 2.18", l.Version())
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

func (l *library) result(name string, communicator uintptr, code int32) error {
	if code == success || code == inProgress {
		return nil
	}
	text := clib.Text(clib.Call(l.getErrorString, uintptr(code)))
	if more := strings.TrimSpace(clib.Text(clib.Call(l.getLastError, communicator))); more != "" {
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
	c := &communicator{lib: l, dev: dev, cell: new(uintptr)}
	const unset = math.MinInt32
	cfg := &config{magic: configMagic, version: minVersion, cgaCluster: unset, minCTA: unset, maxCTA: unset,
		splitShare: unset}
	cfg.size = uint64(unsafe.Sizeof(*cfg))
	var code uintptr
	l.hold(c, true)
	err := dev.Do(func() error { // the device is the thread's current one
		words := (*[16]uintptr)(unsafe.Pointer(&id))
		code = initRank(l.initRankConfig, clib.Address(c.cell), uintptr(n), words, uintptr(rank), clib.Address(cfg))
		return nil
	})
	runtime.KeepAlive(cfg)
	if err == nil {
		err = l.result("ncclCommInitRankConfig", 0, int32(code))
	}
	if err != nil {
		l.hold(c, false)
		return nil, err
	}
	c.handle = *c.cell
	if err := c.settle("ncclCommInitRankConfig", over); err != nil {
		_ = c.Abort()
		return nil, err
	}
	return c, nil
}

// hold keeps a communicator's memory, or no longer does.
func (l *library) hold(c *communicator, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if open {
		l.open[c] = true
	} else {
		delete(l.open, c)
	}
}
