// SPDX-License-Identifier: Apache-2.0

// Package precision selects the dtypes of a training run: those of bf16 and fp16, exceptions for modules, and the loss
// scaling of fp16. It is for package accelerate; programs set arguments. Start with [DTypes] and [NewScaler].
package precision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// DTypes are those in which products are computed (tensor.Ctx.Autocast); Invalid for none.
type DTypes struct{ Train, Eval tensor.DType }

// CheckParams refuses parameters that cannot be used with them.
func (d DTypes) CheckParams(params []tensor.Named) error {
	if d == (DTypes{}) {
		return nil
	}
	half := d.Train != tensor.Float16 && d.Eval != tensor.Float16
	for _, p := range params {
		if dt := p.DType(); dt != tensor.Float32 && !(half && dt == tensor.BFloat16) {
			return fmt.Errorf("accelerate: parameter %s is %v: want float32 parameters with bf16 and fp16, or "+
				"bfloat16 ones with bf16", p.Name, dt)
		}
	}
	return nil
}

// CheckFirst returns an error if ops of the first window did not compute in the dtypes that are meant for them. ran
// counts what they did; nil: nobody counted.
func (d DTypes) CheckFirst(ran *tensor.DTypeCounts, params []tensor.Named) error {
	if ran == nil {
		return nil
	}
	if err := ran.Check(d.Train); err != nil {
		return fmt.Errorf("accelerate: the first step: %w", err)
	}
	for _, p := range params {
		if g := p.Grad(); g != nil && g.DType().IsHalf() {
			return fmt.Errorf("accelerate: the first step: the gradient of %s is %v: want %v", p.Name, g.DType(),
				p.GradDType())
		}
	}
	return nil
}

// Modules are those that have their own dtype.
type Modules []Module

// Module is one, by its path.
type Module struct {
	Path  string
	DType tensor.DType
}

// Apply returns a context in which the modules compute in them.
func (list Modules) Apply(c *nn.Ctx) *nn.Ctx {
	for _, p := range list {
		c = c.WithPrecision(p.Path, p.DType)
	}
	return c
}

// Has reports whether a parameter lies in a module of the list.
func (list Modules) Has(parameter string) bool {
	return slices.ContainsFunc(list, func(p Module) bool {
		return p.Path == "" || strings.HasPrefix(parameter, p.Path+".")
	})
}

// Check refuses modules that the model lacks, and dtypes that nothing can compute in.
func (list Modules) Check(tree *nn.Tree) error {
	known := map[string]bool{}
	tree.Modules(func(path string, _ nn.Module) { known[path] = true })
	for _, p := range list {
		switch {
		case !known[p.Path]:
			return fmt.Errorf("accelerate: the model has no module %q to compute in %v", p.Path, p.DType)
		case p.DType != tensor.Float32 && !p.DType.IsHalf():
			return fmt.Errorf("accelerate: module %s is to compute in %v: want float32, bfloat16 or float16", p.Path,
				p.DType)
		}
	}
	return nil
}
