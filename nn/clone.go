// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"reflect"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Clone copies a module and its parameters to dev, for a rank that is a goroutine, field by field. Tied parameters stay
// tied. A func, a chan or an unexported field with a value cannot be copied and is an error that names it.
func Clone[M Module](m M, dev *tensor.Device) (M, error) {
	return clone(m, &cloner{c: tensor.NewCtx(dev).NoGrad(), seen: map[any]reflect.Value{}})
}

// CloneDeferred is Clone, but the copy's parameters have no memory until something uses them. Then they get the values
// that m's have by that time; no other goroutine may write those meanwhile.
func CloneDeferred[M Module](m M, dev *tensor.Device) (M, error) {
	return clone(m, &cloner{c: tensor.NewCtx(dev).NoGrad(), seen: map[any]reflect.Value{}, later: true})
}

// CloneShapes is Clone for a device without values (tensor.NewMeta): m's parameters are not read, and those of the copy
// take no memory until they are used.
func CloneShapes[M Module](m M, dev *tensor.Device) (M, error) {
	twin, err := CloneDeferred(m, dev)
	if err != nil {
		return twin, err
	}
	Walk(twin).EachParameter(func(_ string, p *Parameter) {
		if p.Deferred() != nil {
			p.DeferPart(nil)
			p.Defer(func(c *tensor.Ctx) *tensor.Tensor { return tensor.Empty(c.NoGrad(), p.DType(), p.Shape()...) })
		}
	})
	return twin, nil
}

func clone[M Module](m M, cl *cloner) (M, error) {
	var zero M
	if in := reflect.ValueOf(m); in.Kind() != reflect.Pointer || in.IsNil() {
		return zero, fmt.Errorf("nn.Clone: a module must be a non-nil pointer to a struct, not %T", m)
	}
	defer cl.c.Sync() // the clone is used by other contexts
	v, err := cl.value(reflect.ValueOf(m), fmt.Sprintf("%T", m))
	if err != nil {
		return zero, err
	}
	return v.Interface().(M), nil
}

type cloner struct {
	c     *tensor.Ctx
	seen  map[any]reflect.Value // pointer → its copy
	later bool                  // parameters get their values when they are used
}

func (cl *cloner) value(v reflect.Value, path string) (reflect.Value, error) {
	switch v.Kind() {
	case reflect.Pointer:
		return cl.pointer(v, path)
	case reflect.Interface:
		if v.IsNil() {
			return v, nil
		}
		e, err := cl.value(v.Elem(), path)
		if err != nil {
			return v, err
		}
		out := reflect.New(v.Type()).Elem()
		out.Set(e)
		return out, nil
	case reflect.Slice:
		if v.IsNil() {
			return v, nil
		}
		out := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		return out, cl.elements(v, out, path)
	case reflect.Array:
		out := reflect.New(v.Type()).Elem()
		return out, cl.elements(v, out, path)
	case reflect.Map:
		return cl.mapping(v, path)
	case reflect.Struct:
		out := reflect.New(v.Type()).Elem()
		return out, cl.fields(v, out, path)
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		if !v.IsNil() {
			return v, cl.refuse(path, v.Type())
		}
	}
	return v, nil
}

func (cl *cloner) refuse(path string, t reflect.Type) error {
	return fmt.Errorf("nn.Clone: %s: a %s cannot be copied: build each rank's model with trainer.WithModelInit", path,
		t)
}

func (cl *cloner) pointer(v reflect.Value, path string) (reflect.Value, error) {
	if v.IsNil() {
		return v, nil
	}
	if done, ok := cl.seen[v.Interface()]; ok {
		return done, nil
	}
	switch p := v.Interface().(type) {
	case *Parameter:
		if p.whole != nil {
			return v, fmt.Errorf("nn.Clone: %s is divided among ranks: want Parameter.Join first", path)
		}
		fill, part := p.Deferred(), p.DeferredPart()
		if _, done := cl.seen[p.Tensor]; fill == nil && cl.later && !done {
			whole := p.Tensor // p may be divided later
			fill = func(c *tensor.Ctx) *tensor.Tensor { return copied(c, whole) }
			part = func(c *tensor.Ctx, at tensor.Placement) *tensor.Tensor { return partOf(c, whole, at) }
		}
		if fill != nil {
			q := deferred(cl.c, p.DType(), p.Shape(), fill)
			q.DeferPart(part)
			q.SetRequiresGrad(p.IsLeaf())
			cl.seen[v.Interface()], cl.seen[p.Tensor] = reflect.ValueOf(q), reflect.ValueOf(q.Tensor)
			return reflect.ValueOf(q), nil
		}
		t, err := cl.value(reflect.ValueOf(p.Tensor), path) // several Parameters may share one tensor
		out := reflect.ValueOf(&Parameter{Tensor: t.Interface().(*tensor.Tensor)})
		cl.seen[v.Interface()] = out
		return out, err
	case *tensor.Tensor:
		out := reflect.ValueOf(cl.tensor(p))
		cl.seen[v.Interface()] = out
		return out, nil
	}
	out := reflect.New(v.Type().Elem())
	cl.seen[v.Interface()] = out
	if v.Elem().Kind() == reflect.Struct {
		return out, cl.fields(v.Elem(), out.Elem(), path)
	}
	e, err := cl.value(v.Elem(), path)
	if err == nil {
		out.Elem().Set(e)
	}
	return out, err
}

// tensor copies values and the wish for gradients, not gradients or hooks.
func (cl *cloner) tensor(t *tensor.Tensor) *tensor.Tensor {
	return copied(cl.c, t).SetRequiresGrad(t.IsLeaf())
}

// copied copies values.
func copied(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	t.Device().Sync() // whoever wrote it
	host := tensor.ReadBytes(tensor.NewCtx(t.Device()).NoGrad(), t)
	return tensor.FromBytes(c, host, t.DType(), t.Shape()...)
}

// partOf copies the values of a box.
func partOf(c *tensor.Ctx, t *tensor.Tensor, at tensor.Placement) *tensor.Tensor {
	t.Device().Sync() // whoever wrote it
	var host []byte
	var shape []int
	tensor.NewCtx(t.Device()).NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		part := t
		for d, ranges := range at.Box {
			var strips []*tensor.Tensor
			for _, r := range ranges {
				strips = append(strips, tensor.Slice(c, part, d, r.Start, r.Stop))
			}
			if part = strips[0]; len(strips) > 1 {
				part = tensor.Concat(c, d, strips...)
			}
		}
		host, shape = tensor.ReadBytes(c, part), part.Shape()
		return nil
	})
	return tensor.FromBytes(c, host, t.DType(), shape...)
}

func (cl *cloner) fields(v, out reflect.Value, path string) error {
	for i := range v.NumField() {
		f, fv := v.Type().Field(i), v.Field(i)
		if !f.IsExported() {
			if !fv.IsZero() { // reflection cannot copy it, and dropping it would change the model silently
				return fmt.Errorf("nn.Clone: %s.%s: an unexported field with a value cannot be copied: export it, "+
					"or build each rank's model with trainer.WithModelInit", path, f.Name)
			}
			continue
		}
		c, err := cl.value(fv, path+"."+f.Name)
		if err != nil {
			return err
		}
		out.Field(i).Set(c)
	}
	return nil
}

func (cl *cloner) elements(v, out reflect.Value, path string) error {
	for i := range v.Len() {
		e, err := cl.value(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		if err != nil {
			return err
		}
		out.Index(i).Set(e)
	}
	return nil
}

func (cl *cloner) mapping(v reflect.Value, path string) (reflect.Value, error) {
	if v.IsNil() {
		return v, nil
	}
	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	for it := v.MapRange(); it.Next(); {
		e, err := cl.value(it.Value(), fmt.Sprintf("%s[%v]", path, it.Key()))
		if err != nil {
			return out, err
		}
		out.SetMapIndex(it.Key(), e)
	}
	return out, nil
}
