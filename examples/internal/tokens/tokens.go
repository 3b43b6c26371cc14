// SPDX-License-Identifier: Apache-2.0

// Package tokens encodes the texts of the examples and shows the progress. It is no example itself.
package tokens

import (
	"context"
	"runtime"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/program"
)

// piece is how many bytes of text are encoded between two looks at how far it is.
const piece = 1 << 20

// Encode encodes every text. p shows how far it is; it may be nil.
func Encode(ctx context.Context, p *program.Process, tok *tokenizers.Tokenizer, texts []string) ([][]int32, error) {
	phase := p.Phase("tokenizing", Size(texts), callbacks.Bytes)
	defer phase.Close()
	all := make([][]int32, 0, len(texts))
	for len(all) < len(texts) {
		end, size := len(all), int64(0)
		for ; end < len(texts) && size < piece; end++ {
			size += int64(len(texts[end]))
		}
		ids, err := tok.EncodeAll(ctx, texts[len(all):end], runtime.GOMAXPROCS(0))
		if err != nil {
			return nil, err
		}
		all = append(all, ids...)
		phase.Add(size)
	}
	return all, nil
}

// Train trains a byte-level BPE on texts. p shows how far it is; it may be nil.
func Train(ctx context.Context, p *program.Process, texts []string, o tokenizers.TrainOptions) (*tokenizers.Tokenizer,
	error) {
	phase := p.Phase("tokenizer", int64(o.VocabSize), callbacks.Items)
	defer phase.Close()
	o.Progress = func(done, total int) { phase.Set(int64(o.VocabSize - total + done)) }
	return tokenizers.Train(ctx, func(yield func(string, error) bool) {
		for _, text := range texts {
			if !yield(text, nil) {
				return
			}
		}
	}, o)
}

// Size is how many bytes texts have.
func Size(texts []string) (n int64) {
	for _, text := range texts {
		n += int64(len(text))
	}
	return n
}
