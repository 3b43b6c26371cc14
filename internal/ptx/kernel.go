// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
)

// Param is one parameter of a kernel in the parameter block. Structures are arrays of bytes.
type Param struct {
	Name                string
	Offset, Size, Align int
}

// Kernel is a linked kernel. It may be launched from several goroutines at once.
type Kernel struct {
	name       string
	module     *Module
	params     []Param
	paramBytes int
	maxThreads [3]int
	required   [3]int

	code      []codeLine
	stretches []stretch

	n32, n64, np int
	names        map[byte]map[int]string // of registers, by class
	consts32     []constant
	consts64     []constant
	symbols      []symbolUse
	initial32    []uint32 // which lanes are defined at the start
	initial64    []uint32
	initialP     []uint32
	definedP     []int
	specialRegs  [specialCount]int

	localBytes   int
	localGap     []bool
	sharedBytes  int // with the gaps between variables
	staticShared int // as the device counts
	sharedShadow []byte
	sharedNames  []placed
	dynamicAt    int

	mutex sync.Mutex
	idle  map[blockShape][]*block
}

type codeLine struct {
	line int
	text string
}

type constant struct {
	reg   int
	value uint64
}

type symbolUse struct {
	reg    int
	name   string
	offset int64
}

type placed struct {
	name     string
	at, size int
}

type blockShape struct {
	threads [3]uint32
	shared  int
}

// Name is the kernel's name.
func (k *Kernel) Name() string { return k.name }

// Params lists the parameters in order.
func (k *Kernel) Params() []Param { return k.params }

// ParamBytes is the size of the parameter block.
func (k *Kernel) ParamBytes() int { return k.paramBytes }

// MaxThreads is the largest number of threads of a block: what the kernel's launch bounds say, or 1024.
func (k *Kernel) MaxThreads() int {
	for _, d := range [][3]int{k.maxThreads, k.required} {
		if n := d[0] * d[1] * d[2]; n > 0 {
			return min(n, 1024)
		}
	}
	return 1024
}

// SharedBytes is the static shared memory of a block, without what a launch adds.
func (k *Kernel) SharedBytes() int { return k.staticShared }

// LocalBytes is the local memory of a thread.
func (k *Kernel) LocalBytes() int { return k.localBytes }

func (k *Kernel) registerName(class byte, r int) string {
	if n := k.names[class][r]; n != "" {
		return n
	}
	return fmt.Sprintf("a register (%c%d)", class, r)
}

func (k *Kernel) sharedPlace(addr uint64) string {
	last := placed{name: "the beginning"}
	for _, p := range k.sharedNames {
		if p.at <= int(addr) {
			last = p
		}
	}
	return fmt.Sprintf("byte %d of %s (%d bytes)", int(addr)-last.at, last.name, last.size)
}

func (k *Kernel) special(w *warp, s specialRegister, lane int, v uint32) {
	if r := k.specialRegs[s]; r >= 0 {
		w.r32[r][lane] = v
	}
}

func (k *Kernel) specials(w *warp, s specialRegister, v uint32) {
	if r := k.specialRegs[s]; r >= 0 {
		set32(w, r, v)
	}
}

// Launch describes a launch. The zero value of the fields after Block is the usual case.
type Launch struct {
	Grid, Block [3]uint32
	SharedBytes int    // dynamic shared memory
	Seed        uint64 // order of warps and blocks; 0 is the natural order
	Workers     int    // goroutines that run blocks; 0 is one for each processor, if the launch is large

	// MaxInstructions bounds the instructions of all threads together; 0 is no bound.
	MaxInstructions int64

	// CheckRaces looks for blocks that access the same bytes of global memory, at a cost of 12 bytes for each byte.
	// Blocks then run one after the other.
	CheckRaces bool
}

// Stats counts what a launch did.
type Stats struct {
	Blocks       int64
	Threads      int64
	Instructions int64 // of all threads
}

// Limits of a launch, those of compute capability 8.0 and 9.0.
const (
	maxThreadsPerBlock = 1024
	maxShared          = 227 << 10
)

// check compares a launch with the kernel and the device's limits.
func (k *Kernel) check(l *Launch, params []byte) error {
	limits := [3]uint32{1<<31 - 1, 65535, 65535}
	block := [3]uint32{1024, 1024, 64}
	blocks := uint64(1)
	for i := range 3 {
		if l.Grid[i] < 1 || l.Grid[i] > limits[i] {
			return fmt.Errorf("ptx: %s: grid %s: want 1 to %s", k.name, index(l.Grid), index(limits))
		}
		if l.Block[i] < 1 || l.Block[i] > block[i] {
			return fmt.Errorf("ptx: %s: block %s: want 1 to %s", k.name, index(l.Block), index(block))
		}
		blocks *= uint64(l.Grid[i])
		if blocks >= 1<<32-1 {
			return fmt.Errorf("ptx: %s: grid %s has more blocks than the interpreter counts", k.name, index(l.Grid))
		}
		if r := k.required; r[0] > 0 && uint32(r[i]) != l.Block[i] {
			return fmt.Errorf("ptx: %s: block %s: the kernel requires %v", k.name, index(l.Block), r)
		}
	}
	if n := uint64(l.Block[0]) * uint64(l.Block[1]) * uint64(l.Block[2]); n > uint64(k.MaxThreads()) {
		return fmt.Errorf("ptx: %s: %d threads in a block: the kernel allows %d", k.name, n, k.MaxThreads())
	}
	if l.SharedBytes < 0 || l.SharedBytes+k.staticShared > maxShared {
		return fmt.Errorf("ptx: %s: %d static and %d dynamic bytes of shared memory: a block has %d", k.name,
			k.staticShared,
			l.SharedBytes, maxShared)
	}
	if len(params) != k.paramBytes {
		return fmt.Errorf("ptx: %s: %d bytes of parameters: want %d", k.name, len(params), k.paramBytes)
	}
	return nil
}

// Run executes the kernel for every thread of the grid and returns when all are done. params is the parameter block,
// ParamBytes long. What the kernel does wrong is returned as a *[Fault], the one of the block that comes first; memory
// then holds what was written until then. Results do not depend on Workers, nor on Seed if the kernel is right.
func (k *Kernel) Run(mem *Memory, l Launch, params []byte) (Stats, error) {
	if err := k.check(&l, params); err != nil {
		return Stats{}, err
	}
	loaded, err := k.module.load(mem)
	if err != nil {
		return Stats{}, err
	}
	r := &run{launch: &l, mem: mem, params: params}
	r.stopAt.Store(^uint64(0))
	for _, s := range k.symbols {
		r.symbols = append(r.symbols, loaded[s.name])
	}
	n := uint64(l.Grid[0]) * uint64(l.Grid[1]) * uint64(l.Grid[2])
	workers := l.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
		if n*uint64(l.Block[0]*l.Block[1]*l.Block[2]) < 1<<12 {
			workers = 1
		}
	}
	if l.CheckRaces {
		r.races = &globalAccesses{of: map[*allocation][]globalAccess{}}
		workers = 1
	}
	workers = int(min(uint64(workers), n))
	fault := k.runBlocks(r, n, workers)
	stats := Stats{Blocks: int64(n), Threads: int64(n) * int64(l.Block[0]*l.Block[1]*l.Block[2]),
		Instructions: r.executed.Load()}
	if fault != nil {
		return stats, fault
	}
	return stats, nil
}

// runBlocks spreads the blocks over goroutines; the fault is the one whose block comes first.
func (k *Kernel) runBlocks(r *run, n uint64, workers int) error {
	order := func(i uint64) uint32 { return uint32(i) }
	if r.launch.Seed != 0 {
		// A bijection of 0 … n-1: a step that has no factor in common with n.
		step := mix(r.launch.Seed) % n
		for gcd(step, n) != 1 {
			step++
		}
		order = func(i uint64) uint32 { return uint32(i * step % n) }
	}
	var (
		mutex sync.Mutex
		first uint64
		fault error
		wait  sync.WaitGroup
		next  uint64
	)
	take := func() (uint64, bool) {
		mutex.Lock()
		defer mutex.Unlock()
		if fault != nil || next >= n {
			return 0, false
		}
		next++
		return next - 1, true
	}
	work := func() {
		b := k.takeBlock(r)
		for {
			i, ok := take()
			if !ok {
				break
			}
			if err := b.guard(order(i), i); err != nil {
				mutex.Lock()
				if fault == nil || i < first {
					fault, first = err, i
					r.stopAt.Store(i)
				}
				mutex.Unlock()
			}
		}
		b.flush(nil)
		k.giveBlock(b)
	}
	for range workers - 1 {
		wait.Go(work)
	}
	work()
	wait.Wait()
	return fault
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// guard runs a block and returns its fault.
func (b *block) guard(linear uint32, order uint64) (err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *Fault:
			err = e
		case stopped:
		default:
			panic(e)
		}
	}()
	b.start(linear, order)
	b.execute()
	return nil
}

// takeBlock returns a block's state that is not in use.
func (k *Kernel) takeBlock(r *run) *block {
	shared := k.sharedBytes
	if k.dynamicAt >= 0 {
		shared = k.dynamicAt + r.launch.SharedBytes
	}
	shape := blockShape{r.launch.Block, shared}
	k.mutex.Lock()
	var b *block
	if list := k.idle[shape]; len(list) > 0 {
		b = list[len(list)-1]
		k.idle[shape] = list[:len(list)-1]
	}
	k.mutex.Unlock()
	if b == nil {
		b = newBlock(k, r.launch.Block, shared)
	}
	b.prepare(r)
	return b
}

func (k *Kernel) giveBlock(b *block) {
	shape := blockShape{b.launch.Block, len(b.shared)}
	b.run, b.launch, b.mem, b.params = nil, nil, nil, nil
	for _, w := range b.warps {
		w.near = nothing
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if len(k.idle) > 8 {
		clear(k.idle)
	}
	if len(k.idle[shape]) < 4 {
		k.idle[shape] = append(k.idle[shape], b)
	}
}

// errUnsupported marks instructions that the interpreter does not know.
var errUnsupported = errors.New("the interpreter does not know this instruction")
