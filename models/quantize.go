// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"log/slog"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Quantize freezes the weights of m's linear layers, embeddings of tokens and heads and keeps them as 8-bit numbers,
// the blocks of llama.cpp's Q8_0 (see tensor.Quantize): those of a GGUF file of Q8_0 lose nothing, others are rounded.
// A generated token then reads a quarter of float32's memory, and adapters of package models/lora train on top of these
// weights. A weight whose rows are no multiple of 32 numbers stays unchanged, and so do all on a device without kernels
// for blocks: a line of the log has their number. The weights are float32. Strategies that divide or send weights make
// them float32 again.
func Quantize(m nn.Module) {
	weights := map[*nn.Parameter]bool{} // tied ones once
	tokens := 0
	if r, ok := m.(TokenReader); ok {
		tokens = r.VocabSize()
	}
	tree := nn.Walk(m)
	tree.Modules(func(_ string, m nn.Module) {
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
	reportUnquantized(tree, weights)
}

// reportUnquantized logs how many of the weights are not in blocks, and why.
func reportUnquantized(tree *nn.Tree, weights map[*nn.Parameter]bool) {
	left, why, first := 0, "", ""
	tree.EachParameter(func(name string, p *nn.Parameter) {
		if !weights[p] || p.Quantized() {
			return
		}
		left++
		if row := p.Size(-1); row%blockwise.Q8Block != 0 && first == "" {
			why, first = fmt.Sprintf("rows are no multiple of %d numbers, the blocks of q8_0", blockwise.Q8Block),
				fmt.Sprintf("%s has %d", name, row)
		}
	})
	if left == 0 {
		return
	}
	facts := []any{"matrices", left, "of", len(weights)}
	if why == "" {
		why = "numbers are too large for q8_0, or the device has no kernels for it"
	} else {
		facts = append(facts, "example", first)
	}
	slog.Warn("matrices stay in float32 and not q8_0: "+why, facts...)
}
