// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// OpClass is a group of ops that one dtype is meant for under Autocast.
type OpClass uint8

// The classes.
const (
	Products OpClass = iota
	Attentions
	Convolutions
	Norms
	Softmaxes
	Losses
	Sums
	numClasses
)

// String is the class's name, as "products".
func (k OpClass) String() string {
	return [...]string{"products", "attention", "convolutions", "norms", "softmax", "losses", "sums"}[k]
}

// DType is what ops of the class compute in under Autocast(lower): lower, or float32. Convolutions round to lower what
// they read and write.
func (k OpClass) DType(lower DType) DType {
	if k <= Convolutions {
		return lower
	}
	return Float32
}

// OpDTypes is a line that says which class of ops computes in which dtype under Autocast(lower).
func OpDTypes(lower DType) string {
	var groups []string
	for k := OpClass(0); k < numClasses; k++ {
		if k > 0 && k.DType(lower) == (k-1).DType(lower) {
			groups[len(groups)-1] += ", " + k.String()
		} else {
			groups = append(groups, k.String())
		}
		if k == numClasses-1 || k.DType(lower) != (k+1).DType(lower) {
			groups[len(groups)-1] += " " + k.DType(lower).String()
		}
	}
	return strings.Join(groups, "; ")
}

// classes of kernels. Of a loss and a sum the result counts, of a batch norm its statistics, of all others what they
// read.
var classes = map[backend.Op]OpClass{
	backend.OpMatMul: Products, backend.OpLinear: Products, backend.OpAttention: Attentions,
	backend.OpConv2D:    Convolutions,
	backend.OpLayerNorm: Norms, backend.OpRMSNorm: Norms, backend.OpBatchStats: Norms, backend.OpBatchNorm: Norms,
	backend.OpSoftmax: Softmaxes, backend.OpLogSoftmax: Softmaxes,
	backend.OpCrossEntropy: Losses, backend.OpBCEWithLogits: Losses, backend.OpSum: Sums,
}

// DTypeCounts counts what ops computed in.
type DTypeCounts struct {
	n     [numClasses][Bool + 1]int
	where [numClasses][Bool + 1]string // module path of the first
}

// CountDTypes returns a context whose ops, and those of contexts derived from it, are counted by class and dtype. Ops
// of backward passes are not, nor those under another Autocast.
func (c *Ctx) CountDTypes(n *DTypeCounts) *Ctx {
	d := *c
	d.counts = n
	return &d
}

// Count is how many ops of a class computed in a dtype.
func (n *DTypeCounts) Count(k OpClass, dt DType) int { return n.n[k][dt] }

// Check returns an error if an op computed in another dtype than Autocast(lower) assigns to it. Float64 is never
// converted.
func (n *DTypeCounts) Check(lower DType) error {
	for k := range numClasses {
		for dt := range n.n[k] {
			if dt := DType(dt); n.n[k][dt] > 0 && dt.IsFloat() && dt != Float64 && dt != k.DType(lower) {
				where := n.where[k][dt]
				if where == "" {
					where = "the model"
				}
				return fmt.Errorf("tensor: %v ran in %v in %s: want %v under Autocast(%v)", k, dt, where,
					k.DType(lower), lower)
			}
		}
	}
	return nil
}

// add counts an op.
func (n *DTypeCounts) add(k OpClass, dt DType, path string) {
	if n.n[k][dt]++; n.n[k][dt] == 1 {
		n.where[k][dt] = path
	}
}

// kernel counts a launch.
func (n *DTypeCounts) kernel(k *backend.Call, path string) {
	class, ok := classes[k.Op]
	if !ok {
		return
	}
	dt := k.In[0].DType
	switch {
	case class == Losses, class == Sums, k.Op == backend.OpBatchStats:
		dt = k.Out[0].DType
	case k.Op == backend.OpBatchNorm:
		dt = k.In[1].DType
	}
	n.add(class, dt, path)
}

// uncounted returns a context whose ops are not counted.
func (c *Ctx) uncounted() *Ctx { return c.CountDTypes(nil) }
