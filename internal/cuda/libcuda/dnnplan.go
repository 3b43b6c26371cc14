// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package libcuda

import (
	"fmt"
	"runtime"

	"github.com/lockstep-ml/lockstep/internal/clib"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// Descriptors of cudnn_graph.h (cudnnBackendDescriptorType_t).
const (
	kindConvolution  = 1
	kindEngine       = 2
	kindEngineConfig = 3
	kindHeuristics   = 4
	kindPlan         = 5
	kindGraph        = 15
	kindVariantPack  = 16
	kindTensor       = 17
)

// Attributes (cudnnBackendAttributeName_t).
const (
	convolutionCompute     = 100
	convolutionMode        = 101
	convolutionDilations   = 102
	convolutionStrides     = 103
	convolutionPostPadding = 104
	convolutionPrePadding  = 105
	convolutionSpatialDims = 106
	heuristicsMode         = 200
	heuristicsGraph        = 201
	heuristicsResults      = 202
	heuristicsDevice       = 204
	configEngine           = 300
	planHandle             = 400
	planConfig             = 401
	planWorkspace          = 402
	planDevice             = 407
	graphHandle            = 800
	graphOperations        = 801
	tensorAlignment        = 900
	tensorType             = 901
	tensorDims             = 902
	tensorStrides          = 903
	tensorID               = 906
	variantIDs             = 1000
	variantPointers        = 1001
	variantWorkspace       = 1003
	engineNumericalNotes   = 1303
	engineBehaviorNotes    = 1305
)

// operation is a kind of operation: its descriptor, and its attributes.
type operation struct {
	kind                               uintptr
	alpha, beta, conv                  uintptr
	attributeX, attributeW, attributeY uintptr
}

var operations = map[cuda.Direction]operation{
	cuda.Forward:    {10, 700, 701, 702, 704, 703, 705},
	cuda.DataGrad:   {12, 706, 707, 708, 710, 709, 711},
	cuda.FilterGrad: {11, 712, 713, 714, 716, 715, 717},
}

// Types of attributes (cudnnBackendAttributeType_t).
const (
	typeHandle          = 0
	typeDataType        = 1
	typeInt64           = 3
	typeFloat           = 4
	typeDouble          = 5
	typePointer         = 6
	typeConvolutionMode = 7
	typeHeuristicsMode  = 8
	typeNumericalNote   = 11
	typeDescriptor      = 15
	typeBehaviorNote    = 19
)

// crossCorrelation is the cudnnConvolutionMode_t that does not turn kernels round.
const crossCorrelation int32 = 1

// The order in which heuristics are asked (cudnnBackendHeurMode_t): a decision tree, and then engines that can do with
// any shape.
var heuristicsModes = []int32{3, 2}

// maxConfigs is how many engines are asked for. The library names about 40.
const maxConfigs = 256

// Notes on engines (cudnnBackendNumericalNote_t, cudnnBackendBehaviorNote_t).
const (
	noteTensorCore       = 0
	noteDownConvert      = 1
	noteReducedPrecision = 2
	noteFFT              = 3
	noteNondeterministic = 4
	noteWinograd         = 5
	noteWinograd6x6      = 7
	noteWinograd13x13    = 8

	behaviorRuntimeCompilation = 0
)

// acceptable reports whether an engine with these notes may compute a convolution: it gives the same bits each time,
// and multiplies and adds as precisely as products do. Float32 goes to the matrix units only if it may be rounded to
// TF32. Winograd's transforms are for single precision, and for small tiles, where they lose little. Engines that
// compile when they are first used would make a first step wait, and want another library.
func acceptable(c cuda.Convolution, notes, behavior []int32) bool {
	for _, note := range notes {
		switch note {
		case noteNondeterministic, noteReducedPrecision, noteFFT, noteWinograd6x6, noteWinograd13x13:
			return false
		case noteTensorCore, noteDownConvert:
			if c.Type == cuda.R32F && !c.TF32 {
				return false
			}
		case noteWinograd:
			if c.Type != cuda.R32F {
				return false
			}
		}
	}
	for _, note := range behavior {
		if note == behaviorRuntimeCompilation {
			return false
		}
	}
	return true
}

// dnnTypes are cudnnDataType_t.
var dnnTypes = map[cuda.DataType]int32{cuda.R32F: 0, cuda.R64F: 1, cuda.R16F: 2, cuda.R16BF: 9}

// Names of operands in a graph.
const (
	idX int64 = iota + 1
	idW
	idY
)

// target is the device that algorithms are for: that of a handle, or one that a descriptor tells of.
type target struct{ handle, device uintptr }

// dnnPlan is a convolution's algorithm, and the descriptors that it is made of. plan is 0 if there is none.
type dnnPlan struct {
	builder
	plan      uintptr
	workspace int64
}

// builder makes descriptors. It does nothing more after an error.
type builder struct {
	lib  *dnnLibrary
	made []uintptr
	err  error
}

func (b *builder) check(call string, code uintptr) bool {
	if b.err == nil {
		b.err = b.lib.result(call, code)
	}
	return b.err == nil
}

func (b *builder) create(kind uintptr) uintptr {
	if b.err != nil {
		return 0
	}
	d := new(uintptr)
	if !b.check("cudnnBackendCreateDescriptor", clib.Call(b.lib.descCreate, kind, clib.Address(d))) {
		return 0
	}
	b.made = append(b.made, *d)
	return *d
}

// finalize makes a descriptor ready, and returns it.
func (b *builder) finalize(d uintptr) uintptr {
	if b.err == nil {
		b.check("cudnnBackendFinalize", clib.Call(b.lib.descFinalize, d))
	}
	return d
}

// discard destroys the descriptors, the latest first.
func (b *builder) discard() {
	for i := len(b.made) - 1; i >= 0; i-- {
		clib.Call(b.lib.descDestroy, b.made[i])
	}
	b.made = nil
}

// attribute sets values of an attribute.
func attribute[T any](b *builder, d, name, kind uintptr, values ...T) {
	if b.err != nil {
		return
	}
	code := clib.Call(b.lib.setAttribute, d, name, kind, uintptr(len(values)), clib.Address(&values[0]))
	runtime.KeepAlive(values)
	if !b.check("cudnnBackendSetAttribute", code) {
		b.err = fmt.Errorf("attribute %d, %v: %w", name, values, b.err)
	}
}

// attributes reads values of an attribute, as many as there are places. Descriptors are put into those that the caller
// made.
func attributes[T any](b *builder, d, name, kind uintptr, values []T) []T {
	if b.err != nil || len(values) == 0 {
		return nil
	}
	found := new(int64)
	code := clib.Call(b.lib.getAttribute, d, name, kind, uintptr(len(values)), clib.Address(found),
		clib.Address(&values[0]))
	runtime.KeepAlive(values)
	if !b.check("cudnnBackendGetAttribute", code) {
		b.err = fmt.Errorf("attribute %d: %w", name, b.err)
		return nil
	}
	return values[:min(int(*found), len(values))]
}

// tensor describes an operand without gaps.
func (b *builder) tensor(c cuda.Convolution, id int64, dims ...int64) uintptr {
	d := b.create(kindTensor)
	strides := make([]int64, len(dims))
	for i, n := len(dims)-1, int64(1); i >= 0; i-- {
		strides[i] = n
		n *= dims[i]
	}
	attribute(b, d, tensorType, typeDataType, dnnTypes[c.Type])
	attribute(b, d, tensorDims, typeInt64, dims...)
	attribute(b, d, tensorStrides, typeInt64, strides...)
	attribute(b, d, tensorID, typeInt64, id)
	attribute(b, d, tensorAlignment, typeInt64, int64(c.Align))
	return b.finalize(d)
}

// graph describes a convolution: a graph of one operation.
func (b *builder) graph(c cuda.Convolution, handle uintptr) uintptr {
	if _, ok := dnnTypes[c.Type]; !ok && b.err == nil {
		b.err = fmt.Errorf("cuDNN has no type %d", c.Type)
	}
	compute, scalar := dnnTypes[cuda.R32F], uintptr(typeFloat)
	if c.Type == cuda.R64F {
		compute, scalar = dnnTypes[cuda.R64F], typeDouble
	}
	pair := func(p [2]int) []int64 { return []int64{int64(p[0]), int64(p[1])} }
	conv := b.create(kindConvolution)
	attribute(b, conv, convolutionCompute, typeDataType, compute)
	attribute(b, conv, convolutionMode, typeConvolutionMode, crossCorrelation)
	attribute(b, conv, convolutionSpatialDims, typeInt64, int64(2))
	attribute(b, conv, convolutionDilations, typeInt64, pair(c.Dilation)...)
	attribute(b, conv, convolutionStrides, typeInt64, pair(c.Stride)...)
	attribute(b, conv, convolutionPrePadding, typeInt64, pair(c.Padding)...)
	attribute(b, conv, convolutionPostPadding, typeInt64, pair(c.Padding)...)
	b.finalize(conv)
	o := operations[c.Direction]
	x := b.tensor(c, idX, int64(c.N), int64(c.C), int64(c.H), int64(c.W))
	w := b.tensor(c, idW, int64(c.K), int64(c.C), int64(c.R), int64(c.S))
	y := b.tensor(c, idY, int64(c.N), int64(c.K), int64(c.P), int64(c.Q))
	op := b.create(o.kind)
	attribute(b, op, o.conv, typeDescriptor, conv)
	attribute(b, op, o.attributeX, typeDescriptor, x)
	attribute(b, op, o.attributeW, typeDescriptor, w)
	attribute(b, op, o.attributeY, typeDescriptor, y)
	beta := map[bool]float64{false: 0, true: 1}[c.Accumulate]
	if scalar == typeDouble {
		attribute(b, op, o.alpha, scalar, 1.0)
		attribute(b, op, o.beta, scalar, beta)
	} else {
		attribute(b, op, o.alpha, scalar, float32(1))
		attribute(b, op, o.beta, scalar, float32(beta))
	}
	b.finalize(op)
	g := b.create(kindGraph)
	if handle != 0 {
		attribute(b, g, graphHandle, typeHandle, handle)
	}
	attribute(b, g, graphOperations, typeDescriptor, op)
	return b.finalize(g)
}

// choose makes the plan of a convolution: of the first engine that the library's heuristics name and that is
// acceptable, supported, and content with the workspace there is. The error is ErrNoAlgorithm, beside an empty plan, if
// there is none.
func (l *dnnLibrary) choose(c cuda.Convolution, at target) (*dnnPlan, error) {
	p := &dnnPlan{builder: builder{lib: l}}
	graph := p.graph(c, at.handle)
	for i := 0; i < len(heuristicsModes) && p.err == nil && p.plan == 0; i++ {
		p.search(c, graph, heuristicsModes[i], at)
	}
	switch {
	case isUnsupported(p.err) || p.err == nil && p.plan == 0:
		p.discard()
		return &dnnPlan{builder: builder{lib: l}}, cuda.ErrNoAlgorithm
	case p.err != nil:
		p.discard()
		return nil, p.err
	}
	return p, nil
}

// search tries the engines that one of the heuristics names.
func (p *dnnPlan) search(c cuda.Convolution, graph uintptr, mode int32, at target) {
	h := builder{lib: p.lib}
	defer h.discard()
	heuristics := h.create(kindHeuristics)
	attribute(&h, heuristics, heuristicsGraph, typeDescriptor, graph)
	attribute(&h, heuristics, heuristicsMode, typeHeuristicsMode, mode)
	if at.device != 0 {
		attribute(&h, heuristics, heuristicsDevice, typeDescriptor, at.device)
	}
	h.finalize(heuristics)
	configs := make([]uintptr, maxConfigs)
	for i := range configs {
		configs[i] = h.create(kindEngineConfig)
	}
	configs = attributes(&h, heuristics, heuristicsResults, typeDescriptor, configs)
	for _, config := range configs {
		t := builder{lib: p.lib}
		plan, workspace, ok := t.try(c, config, at)
		if ok {
			p.plan, p.workspace = plan, workspace
			p.made = append(append(p.made, h.keep(config)), t.made...)
			return
		}
		t.discard()
		if t.err != nil && !isRefusal(t.err) {
			p.err = t.err
			return
		}
	}
	if !isUnsupported(h.err) {
		p.err = h.err
	}
}

// keep takes a descriptor out of those that will be discarded.
func (b *builder) keep(d uintptr) uintptr {
	for i, made := range b.made {
		if made == d {
			b.made = append(b.made[:i], b.made[i+1:]...)
			break
		}
	}
	return d
}

// try makes a plan of an engine.
func (b *builder) try(c cuda.Convolution, config uintptr, at target) (plan uintptr, workspace int64, ok bool) {
	engine := attributes(b, config, configEngine, typeDescriptor, []uintptr{b.create(kindEngine)})
	if len(engine) == 0 {
		return 0, 0, false
	}
	notes := attributes(b, engine[0], engineNumericalNotes, typeNumericalNote, make([]int32, 32))
	behavior := attributes(b, engine[0], engineBehaviorNotes, typeBehaviorNote, make([]int32, 32))
	if b.err != nil || !acceptable(c, notes, behavior) {
		return 0, 0, false
	}
	plan = b.create(kindPlan)
	if at.handle != 0 {
		attribute(b, plan, planHandle, typeHandle, at.handle)
	}
	if at.device != 0 {
		attribute(b, plan, planDevice, typeDescriptor, at.device)
	}
	attribute(b, plan, planConfig, typeDescriptor, config)
	b.finalize(plan)
	size := attributes(b, plan, planWorkspace, typeInt64, make([]int64, 1))
	if b.err != nil || len(size) == 0 || size[0] > maxConvolutionWorkspace {
		return 0, 0, false
	}
	return plan, size[0], true
}

// execute queues a plan on the handle's stream.
func (l *dnnLibrary) execute(handle uintptr, p *dnnPlan, with *pack) error {
	b := builder{lib: l}
	defer b.discard()
	variant := b.create(kindVariantPack)
	attribute(&b, variant, variantIDs, typeInt64, with.ids[:]...)
	attribute(&b, variant, variantPointers, typePointer, with.operands[:]...)
	attribute(&b, variant, variantWorkspace, typePointer, with.workspace)
	b.finalize(variant)
	if b.err == nil {
		b.check("cudnnBackendExecute", clib.Call(l.backendExecute, handle, p.plan, variant))
	}
	return b.err
}
