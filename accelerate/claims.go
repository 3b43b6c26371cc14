// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// claims are the tensors that ranks of this process train, with the claim of each accelerator. Tensors are held weakly:
// a model that is no longer used is freed, whether its accelerator was closed or not.
var claims struct {
	sync.Mutex
	of map[weak.Pointer[tensor.Tensor]][]string
}

// claim makes the parameters and buffers of a model this rank's until release. shared has the claims that
// accelerators of this process had before on the same tensors, each with the name of the first tensor. A new claim is
// made at each Prepare, and the ranks compare theirs, so that claims of other jobs and of earlier models do not count.
func (a *Accelerator) claim(tree *nn.Tree) (shared map[string]string) {
	a.release()
	c := &claimed{name: rand.Text()}
	claims.Lock()
	defer claims.Unlock()
	for _, p := range tree.State() {
		key := weak.Make(p.Tensor)
		for _, other := range claims.of[key] {
			if shared == nil {
				shared = map[string]string{}
			}
			if _, known := shared[other]; !known {
				shared[other] = p.Name
			}
		}
		if claims.of == nil {
			claims.of = map[weak.Pointer[tensor.Tensor]][]string{}
		}
		claims.of[key] = append(claims.of[key], c.name)
		c.tensors = append(c.tensors, key)
	}
	a.claimed = c
	c.abandoned = runtime.AddCleanup(a, (*claimed).end, c)
	return shared
}

// release ends the claim.
func (a *Accelerator) release() {
	if a.claimed != nil {
		a.claimed.abandoned.Stop()
		a.claimed.end()
		a.claimed = nil
	}
}

// claimed is a claim.
type claimed struct {
	name      string
	tensors   []weak.Pointer[tensor.Tensor]
	abandoned runtime.Cleanup // of an accelerator that nobody closed
}

func (c *claimed) end() {
	claims.Lock()
	defer claims.Unlock()
	for _, key := range c.tensors {
		left := slices.DeleteFunc(claims.of[key], func(name string) bool { return name == c.name })
		if claims.of[key] = left; len(left) == 0 {
			delete(claims.of, key)
		}
	}
}

// oneModel is the error of two ranks with the same model.
func oneModel(all []fingerprint) error {
	for rank, f := range all {
		for other, g := range all {
			if name, shared := f.Shared[g.Claim]; shared && other != rank {
				return fmt.Errorf("accelerate: the models of rank %d and rank %d, which run in one process, share the "+
					"parameter or buffer %s: want a separate model for each rank: create it in the rank's "+
					"goroutine, or copy it (nn.Clone); a function that creates models must return a new one each time",
					min(rank, other), max(rank, other), name)
			}
		}
	}
	return nil
}
