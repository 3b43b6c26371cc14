// SPDX-License-Identifier: Apache-2.0

package args

import (
	"maps"
	"reflect"
)

// Difference is one setting that two TrainingArguments do not share.
type Difference struct {
	Key string
	// Old is the value of the receiver of Diff, New that of its argument.
	Old, New string
	// Fixed is set for settings on which the numbers of a training depend: a run
	// that resumes under another value is no longer the same run.
	Fixed bool
}

// Diff lists the settings in which other differs from a, in the order of the
// fields. A resume compares a checkpoint's arguments with those it was given.
func (a *TrainingArguments) Diff(other *TrainingArguments) []Difference {
	before, after := []any{a}, []any{other}
	var out []Difference
	for _, f := range newSchema(a).fields {
		vo, vn := f.of(before), f.of(after)
		if f.text(vo) != f.text(vn) || vo.Kind() == reflect.Slice && vo.Len() != vn.Len() {
			other := f.key != "optim" || !sameOptimizer(vo, vn)
			out = append(out, Difference{Key: f.key, Old: f.masked(vo), New: f.masked(vn), Fixed: f.fixed && other})
		}
	}
	return out
}

// Clone is a copy that shares nothing with a.
func (a *TrainingArguments) Clone() *TrainingArguments {
	c := *a
	c.LRSchedulerKwargs = maps.Clone(a.LRSchedulerKwargs)
	c.DDPCommStateOption = maps.Clone(a.DDPCommStateOption)
	c.AcceleratorConfig = maps.Clone(a.AcceleratorConfig)
	c.TPPlan, c.ParamGroups = maps.Clone(a.TPPlan), maps.Clone(a.ParamGroups)
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.Kind() == reflect.Slice && !f.IsNil():
			f.Set(reflect.AppendSlice(reflect.MakeSlice(f.Type(), 0, f.Len()), f))
		case f.Kind() == reflect.Pointer && !f.IsNil():
			fresh := reflect.New(f.Type().Elem())
			fresh.Elem().Set(f.Elem())
			f.Set(fresh)
		}
	}
	return &c
}
