// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Module is a pointer to a struct whose exported fields hold parameters, buffers and modules:
// directly, by value, embedded, in interfaces, slices, arrays, or maps with string keys.
type Module any

// Parameter is a tensor that training changes. Two modules may share one Parameter
// (weight tying); it then counts once, under the first path.
type Parameter struct {
	*tensor.Tensor
	whole *tensor.Tensor // nil: Tensor is
	part  PartFunc       // nil: none
}

// PartFunc makes the elements of a box of a parameter, as a tensor of the box's shape that nothing else refers to,
// outside of every Scope.
type PartFunc func(c *tensor.Ctx, at tensor.Placement) *tensor.Tensor

// NewParameter makes t a trainable parameter.
func NewParameter(t *tensor.Tensor) *Parameter {
	return &Parameter{Tensor: t.SetRequiresGrad(true)}
}

// Divide makes part, a rank's part of p under tensor parallelism, the parameter's tensor. Trees that were walked before
// have the whole one. Modules can read the part only in units with a Hooks.Context: others would not combine it with
// those of other ranks. Join ends it.
func (p *Parameter) Divide(part *tensor.Tensor) {
	if p.whole != nil {
		panic(&tensor.Error{Op: "nn.Divide", Msg: "the parameter is divided already: want Join first"})
	}
	p.whole, p.Tensor = p.Tensor, part.SetRequiresGrad(p.IsLeaf())
}

// DeferPart says how ranks that divide p, which is deferred (tensor.Tensor.Defer), make their parts of it without the
// whole.
func (p *Parameter) DeferPart(part PartFunc) { p.part = part }

// DeferredPart is what DeferPart was given, until something has used p; nil otherwise.
func (p *Parameter) DeferredPart() PartFunc {
	if p.Deferred() == nil {
		return nil
	}
	return p.part
}

// Whole is the tensor that p had before Divide; nil if it is not divided.
func (p *Parameter) Whole() *tensor.Tensor { return p.whole }

// Join restores the tensor that p had before Divide; false if it was not divided.
func (p *Parameter) Join() (was bool) {
	if p.whole == nil {
		return false
	}
	p.whole.SetRequiresGrad(p.IsLeaf()) // it may have been frozen since
	p.Tensor, p.whole = p.whole, nil
	return true
}

// Buffer is a tensor that belongs to a module's state but is not trained, such as running
// statistics. It is saved, loaded and cloned with the parameters, and no optimizer
// changes it. A module writes to it only in Track, so that all ranks stay the same.
type Buffer struct {
	*tensor.Tensor
}

// NewBuffer makes t a buffer.
func NewBuffer(t *tensor.Tensor) *Buffer { return &Buffer{Tensor: t} }

// Tree holds the parameters, buffers and modules of a module by path. It is computed
// once, by Walk, and passed to NewCtx.
type Tree struct {
	params  []tensor.Named
	owners  []*Parameter // of params
	buffers []tensor.Named
	traits  map[string]Traits // of the parameters
	aliases map[string]string // path of a tied parameter → the path it counts under
	modules []namedModule
	paths   map[Module]string
	names   map[any]string // parameter or buffer → its first path
	hooks   map[Module][]*Hooks
	own     map[Module][]*tensor.Tensor
}

type namedModule struct {
	name   string
	module Module
}

// Walk finds all parameters, buffers and modules under m, in the order of the fields (of the keys, for maps). It panics
// if m is not a pointer to a struct, or if a parameter or buffer would be left out: it has no tensor, or is in an
// unexported field.
func Walk(m Module) *Tree {
	t := &Tree{traits: map[string]Traits{}, aliases: map[string]string{}, paths: map[Module]string{},
		names: map[any]string{}, hooks: map[Module][]*Hooks{}, own: map[Module][]*tensor.Tensor{}}
	v := reflect.ValueOf(m)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		badModule("a module must be a non-nil pointer to a struct, not %T", m)
	}
	w := walker{Tree: t}
	w.module(v, "")
	w.refuseHidden()
	return t
}

func badModule(format string, args ...any) {
	panic(&tensor.Error{Op: "nn.Walk", Msg: fmt.Sprintf(format, args...)})
}

func fieldName(f reflect.StructField) string {
	if tag := f.Tag.Get("nn"); tag != "" {
		return tag
	}
	return strings.ToLower(f.Name)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Parameters lists the parameters in registration order, tied ones once.
func (t *Tree) Parameters() []tensor.Named { return t.params }

// Buffers lists the buffers in registration order, shared ones once.
func (t *Tree) Buffers() []tensor.Named { return t.buffers }

// State lists the tensors of a saved model: the parameters, then the buffers. Of a parameter that is divided among
// ranks (Parameter.Divide) it has the whole tensor, whose memory may be given up.
func (t *Tree) State() []tensor.Named {
	list := slices.Concat(t.params, t.buffers)
	for i, p := range t.owners {
		if p.whole != nil {
			list[i].Tensor = p.whole
		}
	}
	return list
}

// Aliases maps the path of each additional use of a tied parameter or shared buffer to the
// path under which it is counted.
func (t *Tree) Aliases() map[string]string { return t.aliases }

// Modules calls f for each module in the order of the walk, parents first.
func (t *Tree) Modules(f func(path string, m Module)) {
	for _, n := range t.modules {
		f(n.name, n.module)
	}
}

// EachParameter calls f for each parameter in registration order, tied ones once.
func (t *Tree) EachParameter(f func(name string, p *Parameter)) {
	for _, p := range t.owners {
		f(t.names[p], p)
	}
}

// AddHooks attaches hooks to a module of the tree, beside those that it has. The returned function removes them.
func (t *Tree) AddHooks(m Module, h *Hooks) (remove func()) {
	t.hooks[m] = append(slices.Clip(t.hooks[m]), h) // a pass that is under way keeps its own
	return func() {
		t.hooks[m] = slices.DeleteFunc(slices.Clone(t.hooks[m]), func(o *Hooks) bool { return o == h })
	}
}

// path is m's path; a module outside the tree goes by its type.
func (t *Tree) path(m Module) string {
	if p, ok := t.paths[m]; ok {
		return p
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", m), "*")
}

// name is the path under which p is counted; empty for a parameter outside of the tree.
func (t *Tree) name(p *Parameter) string {
	if t == nil {
		return ""
	}
	return t.names[p]
}

// tensors lists the parameters under m.
func (t *Tree) tensors(m Module) []*tensor.Tensor {
	if ts, ok := t.own[m]; ok {
		return ts
	}
	var ts []*tensor.Tensor
	for _, p := range Walk(m).params {
		ts = append(ts, p.Tensor)
	}
	t.own[m] = ts
	return ts
}

// NamedParameters lists the parameters of m in registration order, tied ones once.
func NamedParameters(m Module) []tensor.Named { return Walk(m).Parameters() }

// NumParameters counts the elements of all parameters of m, tied ones once.
func NumParameters(m Module) int {
	n := 0
	for _, p := range NamedParameters(m) {
		n += p.Numel()
	}
	return n
}
