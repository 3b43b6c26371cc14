// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// WeightMapper is implemented by models whose saved arrays differ from their parameters and buffers in names or layout.
// One map serves both ways: weights that are written are read back, and other programs read them too.
type WeightMapper interface {
	// WeightMap lists the rules; the first that matches applies. A parameter without a rule is saved under its own
	// name.
	WeightMap() []WeightRule
}

// WeightRule says what parameters, or buffers, a saved array holds.
type WeightRule struct {
	// Saved is the name of the array. A * stands for any text, and for the same text at its place in Params.
	Saved string
	// Params are what the array holds, one after the other along Dim; as a rule it is one. None: the model does not
	// need the array.
	Params []string
	// Dim is the dim of the saved array along which several parameters lie, as in one projection of queries, keys and
	// values.
	Dim int
	// Transpose is true for a matrix that is saved [in, out] where the parameter is [out, in], or the other way round.
	Transpose bool
	// ReadOnly rules only read arrays, of other programs or versions. Saved arrays have the names of the other rules.
	ReadOnly bool
}

// matched returns what the *s of pattern stand for in name.
func matched(pattern, name string) (texts []string, ok bool) {
	parts := strings.Split(pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	m := regexp.MustCompile("^" + strings.Join(parts, "(.*)") + "$").FindStringSubmatch(name)
	if m == nil {
		return nil, false
	}
	return m[1:], true
}

// filled puts texts in place of the *s of pattern.
func filled(pattern string, texts []string) string {
	for _, t := range texts {
		pattern = strings.Replace(pattern, "*", t, 1)
	}
	return pattern
}

// rules are those of m, nil for none.
func rules(m nn.Module) []WeightRule {
	if w, ok := m.(WeightMapper); ok {
		return w.WeightMap()
	}
	return nil
}

// arrayOf is the array of a saved name.
func arrayOf(rules []WeightRule, saved string) SavedArray {
	for _, r := range rules {
		if texts, ok := matched(r.Saved, saved); ok {
			a := SavedArray{Name: saved, Dim: r.Dim, Transpose: r.Transpose}
			for _, p := range r.Params {
				a.Params = append(a.Params, filled(p, texts))
			}
			return a
		}
	}
	return SavedArray{Name: saved, Params: []string{saved}}
}

// arrayFor is the array in which a parameter is written.
func arrayFor(rules []WeightRule, param string) SavedArray {
	for _, r := range rules {
		for _, p := range r.Params {
			if texts, ok := matched(p, param); ok && !r.ReadOnly {
				return arrayOf([]WeightRule{r}, filled(r.Saved, texts))
			}
		}
	}
	return SavedArray{Name: param, Params: []string{param}}
}

// byName are the parameters and buffers of a model.
func byName(tree *nn.Tree) map[string]tensor.Named {
	named := map[string]tensor.Named{}
	for _, p := range tree.State() {
		named[p.Name] = p
	}
	return named
}

// tensors are the parameters of the array.
func (a SavedArray) tensors(named map[string]tensor.Named) ([]tensor.Named, error) {
	var list []tensor.Named
	for _, name := range a.Params {
		p, ok := named[name]
		if !ok {
			return nil, fmt.Errorf("models: the weight map puts %s into %s, which the model does not have", a.Name,
				name)
		}
		list = append(list, p)
	}
	return list, nil
}

// shape is that of the array of parameters of the given shapes, in their order.
func (a SavedArray) shape(params ...[]int) []int {
	var total []int
	for _, p := range params {
		shape := slices.Clone(p)
		if a.Transpose && len(shape) == 2 {
			slices.Reverse(shape)
		}
		if total == nil {
			total = shape
		} else if a.Dim < len(total) && a.Dim < len(shape) {
			total[a.Dim] += shape[a.Dim]
		}
	}
	return total
}

// bytes are the elements of the array of parameters.
func (a SavedArray) bytes(c *tensor.Ctx, params []*tensor.Tensor) []byte {
	parts := make([]*tensor.Tensor, len(params))
	for i, p := range params {
		if parts[i] = p; a.Transpose {
			parts[i] = tensor.Transpose(c, p, 0, 1)
		}
	}
	whole := parts[0]
	if len(parts) > 1 {
		whole = tensor.Concat(c, a.Dim, parts...)
	}
	return tensor.ReadBytes(c, whole)
}
