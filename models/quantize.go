// SPDX-License-Identifier: Apache-2.0

package models

import (
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Quantize freezes the weights of m's linear layers, embeddings of tokens and heads and keeps them as 8-bit numbers,
// the blocks of llama.cpp's Q8_0 (see tensor.Quantize): those of a GGUF file of Q8_0 lose nothing, others are rounded.
// A generated token then takes a quarter of float32's memory, and adapters of package models/lora train beside such
// weights. A weight whose rows are no multiple of 32 numbers stays as it is, and so do all on a device without kernels
// for blocks. The weights are float32. Strategies that divide or send weights make them float32 again.
func Quantize(m nn.Module) {
	weights := map[*nn.Parameter]bool{} // tied ones once
	tokens := 0
	if r, ok := m.(TokenReader); ok {
		tokens = r.VocabSize()
	}
	nn.Walk(m).Modules(func(_ string, m nn.Module) {
		switch m := m.(type) {
		case *nn.Linear:
			weights[m.Weight] = true
		case *nn.Embedding:
			if m.Weight.Size(0) == tokens { // GPT-2's positions are float32 in files
				weights[m.Weight] = true
			}
		case *nn.LMHead:
			weights[m.Weight] = true
		}
	})
	var workers errgroup.Group
	workers.SetLimit(min(runtime.GOMAXPROCS(0), maxReaders))
	for p := range weights {
		p.SetRequiresGrad(false)
		workers.Go(func() error {
			c := tensor.NewCtx(p.Device()).NoGrad()
			tensor.Quantize(c, p.Tensor)
			c.Sync() // before other contexts use it
			return nil
		})
	}
	_ = workers.Wait() // none returns an error
}
