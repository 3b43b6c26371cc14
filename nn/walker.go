// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"reflect"
	"sort"
	"strconv"

	"github.com/lockstep-ml/lockstep/tensor"
)

// walker fills a Tree.
type walker struct {
	*Tree
	hidden []hidden
	within Traits // of the modules around
}

// hidden is an unexported field that can hold parameters or buffers.
type hidden struct {
	field string
	value reflect.Value
}

var (
	parameterType = reflect.TypeFor[Parameter]()
	bufferType    = reflect.TypeFor[Buffer]()
	tensorType    = reflect.TypeFor[tensor.Tensor]()
)

// module records the module that v points to, and what lies under it.
func (w *walker) module(v reflect.Value, path string) {
	m := v.Interface()
	if _, again := w.paths[m]; again {
		return
	}
	w.paths[m] = path
	w.modules = append(w.modules, namedModule{path, m})
	around := w.within
	w.within = around.with(m)
	w.fields(v.Elem(), path)
	w.within = around
}

func (w *walker) fields(s reflect.Value, path string) {
	for i := range s.NumField() {
		f, v := s.Type().Field(i), s.Field(i)
		name := path
		if !f.Anonymous || f.Tag.Get("nn") != "" || isState(indirect(f.Type)) {
			name = join(path, fieldName(f))
		}
		switch {
		case f.Anonymous && name == path && v.Kind() == reflect.Struct && !hasForward(v.Type()):
			w.fields(v, path) // a part of its module
		case f.IsExported():
			w.value(v, name)
		case f.Anonymous && indirect(f.Type).Kind() == reflect.Struct: // its exported fields are promoted
			if v = reflect.Indirect(v); v.IsValid() {
				w.fields(v, path)
			}
		case !v.IsZero() && holdsState(f.Type, map[reflect.Type]bool{}):
			w.hidden = append(w.hidden, hidden{fmt.Sprintf("%s.%s", s.Type(), f.Name), v})
		}
	}
}

// value follows a field: a parameter, a buffer, a module, or several.
func (w *walker) value(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			w.value(v.Elem(), path)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			w.value(v.Index(i), join(path, strconv.Itoa(i)))
		}
	case reflect.Map:
		w.mapping(v, path)
	case reflect.Struct:
		if isModule(v.Type()) {
			if !v.CanAddr() {
				badModule("%s is a %s by value, whose parameters have no address: store a pointer", path, v.Type())
			}
			w.pointer(v.Addr(), path)
		}
	case reflect.Pointer:
		if !v.IsNil() && v.Elem().Kind() == reflect.Struct && v.Type().Elem() != tensorType {
			w.pointer(v, path)
		}
	}
}

// pointer records a parameter, a buffer or a module.
func (w *walker) pointer(v reflect.Value, path string) {
	m := v.Interface()
	if first, tied := w.names[m]; tied {
		w.aliases[path] = first
		return
	}
	switch p := m.(type) {
	case *Parameter:
		if p.Tensor == nil {
			badModule("parameter %s has no tensor: make it with NewParameter, or leave the field nil", path)
		}
		w.names[p] = path
		w.params, w.owners = append(w.params, tensor.Named{Name: path, Tensor: p.Tensor}), append(w.owners, p)
		w.traits[path] = w.within
	case *Buffer:
		if p.Tensor == nil {
			badModule("buffer %s has no tensor: make it with NewBuffer, or leave the field nil", path)
		}
		w.names[p] = path
		w.buffers = append(w.buffers, tensor.Named{Name: path, Tensor: p.Tensor})
	default:
		w.module(v, path)
	}
}

func (w *walker) mapping(v reflect.Value, path string) {
	if v.Type().Key().Kind() != reflect.String {
		if holdsState(v.Type().Elem(), map[reflect.Type]bool{}) {
			badModule("%s is a %s: want string keys, which name the parameters", path, v.Type())
		}
		return
	}
	keys := v.MapKeys()
	sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
	for _, k := range keys {
		w.value(v.MapIndex(k), join(path, k.String()))
	}
}

// refuseHidden panics for an unexported field that holds parameters or buffers, unless it points to
// something that was found elsewhere.
func (w *walker) refuseHidden() {
	if len(w.hidden) == 0 {
		return
	}
	found := map[uintptr]bool{}
	for p := range w.names {
		found[reflect.ValueOf(p).Pointer()] = true
	}
	for m := range w.paths {
		found[reflect.ValueOf(m).Pointer()] = true
	}
	for _, h := range w.hidden {
		if h.value.Kind() != reflect.Pointer || !found[h.value.Pointer()] {
			badModule("%s holds parameters or buffers but is unexported, so that they would be neither trained nor "+
				"saved: export the field", h.field)
		}
	}
}

// isModule reports whether a struct that lies in a field by value is a module: it has a
// Forward, or holds parameters or buffers.
func isModule(t reflect.Type) bool {
	return hasForward(t) || holdsState(t, map[reflect.Type]bool{})
}

// hasForward reports whether a pointer to a t has the method.
func hasForward(t reflect.Type) bool {
	_, ok := reflect.PointerTo(t).MethodByName("Forward")
	return ok
}

// isState reports whether t is that of a parameter or a buffer.
func isState(t reflect.Type) bool { return t == parameterType || t == bufferType }

// holdsState reports whether values of type t can hold parameters or buffers, as far as
// types tell: what an interface holds is not seen.
func holdsState(t reflect.Type, visited map[reflect.Type]bool) bool {
	if isState(t) {
		return true
	}
	if visited[t] || t == tensorType {
		return false
	}
	visited[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return holdsState(t.Elem(), visited)
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsState(t.Field(i).Type, visited) {
				return true
			}
		}
	}
	return false
}

func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}
