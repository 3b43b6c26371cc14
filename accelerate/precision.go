// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// WithPrecision makes the module of a path, and all within it, compute in a dtype of its own: tensor.Float32,
// tensor.BFloat16 or tensor.Float16, whatever bf16 and fp16 say. Parameters stay as they are.
func WithPrecision(module string, dt tensor.DType) Option {
	return func(a *Accelerator) { a.own = append(a.own, precision{module, dt}) }
}

// precisions are those of modules that have their own.
type precisions []precision

// precision is that of a module, by its path.
type precision struct {
	module string
	dtype  tensor.DType
}

// apply returns a context in which the modules compute in them.
func (list precisions) apply(c *nn.Ctx) *nn.Ctx {
	for _, p := range list {
		c = c.WithPrecision(p.module, p.dtype)
	}
	return c
}

// has reports whether a parameter lies in a module of the list.
func (list precisions) has(parameter string) bool {
	for _, p := range list {
		if p.module == "" || strings.HasPrefix(parameter, p.module+".") {
			return true
		}
	}
	return false
}

// check refuses modules that the model lacks, and dtypes that nothing can compute in.
func (list precisions) check(tree *nn.Tree) error {
	known := map[string]bool{}
	tree.Modules(func(path string, _ nn.Module) { known[path] = true })
	for _, p := range list {
		switch {
		case !known[p.module]:
			return fmt.Errorf("accelerate: the model has no module %q to compute in %v", p.module, p.dtype)
		case p.dtype != tensor.Float32 && !p.dtype.IsHalf():
			return fmt.Errorf("accelerate: module %s is to compute in %v: want float32, bfloat16 or float16", p.module,
				p.dtype)
		}
	}
	return nil
}
