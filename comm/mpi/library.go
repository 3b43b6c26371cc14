// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package mpi

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/internal/clib"
)

// EnvLibrary names the file of the MPI library, for one that is found under none of the usual names.
const EnvLibrary = "LOCKSTEP_MPI_LIBRARY"

// library is an MPI library that has been opened and initialised.
type library struct {
	abi     abi
	version string // its first line
	rank    int    // in MPI_COMM_WORLD
	size    int
	serial  *sync.Mutex // held around each call unless the library takes calls of several threads at once

	commRank, commSize, setErrhandler, isend, irecv, allreduce, iallreduce, test, cancel, finalize, errorString uintptr

	reductions atomic.Int64 // by the library itself
	groups     atomic.Int32 // of all ranks that have been opened
	broken     atomic.Bool  // a process of the job has died, or a message was given up: MPI_Finalize would wait for it

	mu        sync.Mutex
	tags      map[int]int // by rank: the last tag under which it sends to this process
	under     []*request  // what drive looks after
	abandoned []*request  // whose memory the library may still read or write
}

// world is the library of the process. MPI is begun once and ended once.
var world struct {
	mu    sync.Mutex
	lib   *library
	users int // groups, and the program if it called Init
	ended bool
}

// Init begins MPI, if it has not begun. A program calls it that opens groups one after another: MPI then ends with
// Finalize rather than with the first group. Others need not.
func Init() error {
	_, err := acquire()
	return err
}

// Finalize ends MPI when all groups are closed. A program that called Init calls it before it ends.
func Finalize() error { return release() }

// acquire opens the library for one more user.
func acquire() (*library, error) {
	world.mu.Lock()
	defer world.mu.Unlock()
	if world.ended {
		return nil, errors.New("comm/mpi: MPI ended with the last group and cannot begin again: a program that opens " +
			"several groups one after another calls mpi.Init first and mpi.Finalize last")
	}
	if world.lib == nil {
		lib, err := open()
		if err != nil {
			return nil, fmt.Errorf("comm/mpi: %w", err)
		}
		world.lib = lib
	}
	world.users++
	return world.lib, nil
}

// release ends MPI with its last user.
func release() error {
	world.mu.Lock()
	defer world.mu.Unlock()
	if world.users--; world.users > 0 || world.lib == nil || world.ended {
		return nil
	}
	world.ended = true
	if world.lib.broken.Load() {
		return nil
	}
	return world.lib.call("MPI_Finalize", world.lib.finalize)
}

// candidates are the names of libraries to try, those of the launcher that started this process first.
func candidates() []string {
	if name := os.Getenv(EnvLibrary); name != "" {
		return []string{name}
	}
	openMPI := []string{"libmpi.so.40", "libmpi.so.80", "libmpi.40.dylib"}
	mpich := []string{"libmpich.so.12", "libmpi.so.12", "libmpi_cray.so.12", "libmpi.12.dylib"}
	standard := []string{"libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so"}
	any := []string{"libmpi.so", "libmpich.so", "libmpi.dylib"}
	if os.Getenv("OMPI_COMM_WORLD_SIZE") == "" && os.Getenv("PMI_RANK") != "" { // Hydra, or Slurm's pmi2
		openMPI, mpich = mpich, openMPI
	}
	return append(append(append(openMPI, mpich...), standard...), any...)
}

// open finds, opens and initialises the library.
func open() (*library, error) {
	var lib clib.Library
	var tried []string
	for _, name := range candidates() {
		var err error
		if lib, err = clib.OpenGlobal(name); err == nil { // Open MPI's plug-ins want its symbols
			break
		}
		if os.Getenv(EnvLibrary) != "" || !strings.Contains(err.Error(), "No such file") {
			tried = append(tried, err.Error())
		} else {
			tried = append(tried, name)
		}
	}
	if lib.Handle == 0 {
		return nil, fmt.Errorf("no MPI library: tried %s: want Open MPI or MPICH installed, or its file in %s",
			strings.Join(tried, ", "), EnvLibrary)
	}
	a, err := abiOf(lib.Handle)
	if err != nil {
		return nil, err
	}
	l := &library{abi: a, tags: map[int]int{}}
	var initThread, getVersion uintptr
	if err := lib.Bind(map[string]*uintptr{
		"MPI_Init_thread": &initThread, "MPI_Get_library_version": &getVersion, "MPI_Finalize": &l.finalize,
		"MPI_Comm_rank": &l.commRank, "MPI_Comm_size": &l.commSize, "MPI_Comm_set_errhandler": &l.setErrhandler,
		"MPI_Isend": &l.isend, "MPI_Irecv": &l.irecv, "MPI_Test": &l.test, "MPI_Cancel": &l.cancel,
		"MPI_Allreduce":    &l.allreduce,
		"MPI_Iallreduce":   &l.iallreduce,
		"MPI_Error_string": &l.errorString,
	}); err != nil {
		return nil, err
	}
	configure()
	var provided int32
	if err := l.call("MPI_Init_thread", initThread, 0, 0, uintptr(a.multiple), clib.Address(&provided)); err != nil {
		return nil, err
	}
	if provided < a.serialized {
		return nil, fmt.Errorf("%s takes calls of one thread alone (thread level %d): want MPI_THREAD_SERIALIZED or "+
			"MPI_THREAD_MULTIPLE", a.name, provided)
	}
	if provided < a.multiple {
		l.serial = new(sync.Mutex)
	}
	if err := l.call("MPI_Comm_set_errhandler", l.setErrhandler, a.world, a.errorsReturn); err != nil {
		return nil, err
	}
	return l, l.look(getVersion)
}

// look asks the library who this process is, and what it is itself.
func (l *library) look(getVersion uintptr) error {
	var rank, size, length int32
	text := make([]byte, 8192) // MPI_MAX_LIBRARY_VERSION_STRING of all
	err := errors.Join(l.call("MPI_Comm_rank", l.commRank, l.abi.world, clib.Address(&rank)),
		l.call("MPI_Comm_size", l.commSize, l.abi.world, clib.Address(&size)),
		l.call("MPI_Get_library_version", getVersion, clib.Address(&text[0]), clib.Address(&length)))
	l.rank, l.size = int(rank), int(size)
	l.version, _, _ = strings.Cut(strings.TrimRight(string(text[:length]), "\x00"), "\n")
	l.version, _, _ = strings.Cut(l.version, ",")
	l.version = strings.Join(strings.Fields(strings.Replace(l.version, "Version:", "", 1)), " ")
	return err
}

// configure gives Open MPI settings that the user has not set, by C's environment. SIGSEGV and its like are Go's: Open
// MPI would print its own trace instead of a panic. Within a host it copies from process to process (CMA); where a
// container forbids that, it would try all the same and print an error for each message.
func configure() {
	_ = clib.Setenv("OMPI_MCA_opal_signal", "", false)
	if !copiesBetweenProcesses() {
		_ = clib.Setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", false)
	}
}

// call calls a function of the library, and makes an error of what it returns.
func (l *library) call(name string, f uintptr, args ...uintptr) error {
	if l.serial != nil {
		l.serial.Lock()
		defer l.serial.Unlock()
	}
	code := clib.Call(f, args...)
	if int32(code) == 0 {
		return nil
	}
	text, length := make([]byte, 8192), int32(0)
	clib.Call(l.errorString, code, clib.Address(&text[0]), clib.Address(&length))
	return fmt.Errorf("%s: %s", name, text[:length])
}

// maxMessage is the most bytes of one message: counts are ints.
const maxMessage = 1 << 30

// request is a message on its way. Its memory must not move, nor go before it is complete.
type request struct {
	handle uint64 // an MPI_Request, of 4 or 8 bytes
	flag   int32
	keep   bool // it cannot be cancelled
	spin   bool // it has many parts, of which the driver learns nothing
	buffer []byte
	over   func() error  // why it need not be waited for any longer
	done   chan struct{} // closed when err is set and the library has done with the buffer
	err    error
}

// message begins to send b to a rank, or to receive it from there.
func (l *library) message(b []byte, sent bool, rank, tag int, over func() error) (*request, error) {
	r := &request{buffer: b, keep: sent, over: over, done: make(chan struct{})}
	name, f := "MPI_Irecv", l.irecv
	if sent {
		name, f = "MPI_Isend", l.isend
	}
	err := l.call(name, f, clib.Address(&b[0]), uintptr(len(b)), l.abi.bytes, uintptr(rank), uintptr(tag), l.abi.world,
		clib.Address(&r.handle))
	return r, err
}

// allReduce adds up b over all processes in the library's own order; dt is a datatype of the library. Where several
// threads may call the library, one of them waits inside it: MPI makes progress best there, and what computes continues
// beside.
func (l *library) allReduce(b []byte, count int, dt uintptr, over func() error) error {
	l.reductions.Add(1)
	if l.serial == nil {
		done := make(chan error, 1)
		go func() {
			done <- l.call("MPI_Allreduce", l.allreduce, l.abi.inPlace, clib.Address(&b[0]), uintptr(count), dt,
				l.abi.sum, l.abi.world)
		}()
		return l.inside(done, over)
	}
	r := &request{buffer: b, keep: true, spin: true, over: over, done: make(chan struct{})}
	if err := l.call("MPI_Iallreduce", l.iallreduce, l.abi.inPlace, clib.Address(&b[0]), uintptr(count), dt, l.abi.sum,
		l.abi.world, clib.Address(&r.handle)); err != nil {
		return err
	}
	l.await(r)
	return r.err
}

// inside waits for a call that another thread makes. One that is given up never returns: its memory stays the
// library's.
func (l *library) inside(done chan error, over func() error) error {
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			if err := over(); err != nil {
				l.broken.Store(true)
				return err
			}
		}
	}
}

// patience is how often a call inside the library is asked for.
const patience = 20 * time.Millisecond

// await leaves requests to the driver and waits for their end.
func (l *library) await(requests ...*request) {
	l.mu.Lock()
	l.under = append(l.under, requests...)
	if len(l.under) == len(requests) {
		go l.drive()
	}
	l.mu.Unlock()
	for _, r := range requests {
		<-r.done
	}
}

// drive completes what is under way, and ends when nothing is. MPI makes progress only while it is called, so one
// goroutine calls it for all, awake for as long as messages take in shared memory. Later it leaves the core to those
// that compute.
func (l *library) drive() {
	moved := time.Now()
	for {
		l.mu.Lock()
		list := slices.Clone(l.under)
		l.mu.Unlock()
		patient := awake
		for _, r := range list {
			patient += time.Duration(len(r.buffer)) // 1 GB/s
			if !l.settle(r) {
				if r.spin {
					moved = time.Now()
				}
				continue
			}
			moved = time.Now()
			l.mu.Lock()
			l.under = slices.DeleteFunc(l.under, func(x *request) bool { return x == r })
			none := len(l.under) == 0
			l.mu.Unlock()
			close(r.done)
			if none {
				return
			}
		}
		if time.Since(moved) < patient {
			runtime.Gosched()
		} else {
			time.Sleep(nap)
		}
	}
}

// How long the driver looks without a pause at least, and how long a pause is.
const (
	awake = 2 * time.Millisecond
	nap   = 50 * time.Microsecond
)

// settle reports whether a message is complete or given up.
func (l *library) settle(r *request) bool {
	done, err := l.complete(r)
	if !done && err == nil {
		if err = r.over(); err != nil {
			l.withdraw(r)
		}
	}
	r.err = err
	return done || err != nil
}

// complete reports whether a message has arrived, or its buffer is free.
func (l *library) complete(r *request) (bool, error) {
	err := l.call("MPI_Test", l.test, clib.Address(&r.handle), clib.Address(&r.flag), l.abi.ignoreStatus)
	return r.flag != 0, err
}

// withdraw releases a message. A receive ends at once; the memory of others is kept for the library.
func (l *library) withdraw(r *request) {
	l.broken.Store(true)
	if !r.keep && l.call("MPI_Cancel", l.cancel, clib.Address(&r.handle)) == nil {
		for range 1000 {
			if done, err := l.complete(r); done || err != nil {
				return
			}
		}
	}
	l.mu.Lock()
	l.abandoned = append(l.abandoned, r)
	l.mu.Unlock()
}

// maxTag is the largest tag that every library has.
const maxTag = 1<<15 - 1

// newTag is a tag under which nothing has come from a rank yet.
func (l *library) newTag(rank int) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tags[rank] == maxTag {
		return 0, fmt.Errorf("comm/mpi: more than %d connections with rank %d", maxTag, rank)
	}
	l.tags[rank]++
	return l.tags[rank], nil
}
