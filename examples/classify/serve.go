// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/internal/service"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// prediction is the answer to a request: the likeliest class and its probability.
type prediction struct {
	Label string  `json:"label"`
	Score float64 `json:"score"`
}

// predictor runs a trained classifier. It belongs to one goroutine, as its context does; the model may be shared.
type predictor struct {
	c       *nn.Ctx
	model   *gpt2.Classifier
	reader  reader
	collate data.Collator[data.LabelledTokens]
	labels  []string
}

func newPredictor(m *gpt2.Classifier, r reader) *predictor {
	c := tensor.NewCtx(tensor.CPU()).NoGrad() // nothing is recorded for a backward pass
	return &predictor{nn.NewCtx(c, nn.Walk(m), false), m, r, data.WithPadding(r.pad), m.Labels()}
}

// predict classifies a batch of texts.
func (p *predictor) predict(texts []string) (out []prediction, err error) {
	samples := make([]data.LabelledTokens, len(texts))
	for i, t := range texts {
		ids, err := p.reader.tok.EncodeOrdinary(t)
		if err != nil {
			return nil, err
		}
		samples[i].InputIDs = p.reader.fit(ids, p.model.Cfg.NPositions)
	}
	// frees the batch and all that Forward makes
	_, err = p.c.TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
		b, err := p.collate(c.Ctx, samples)
		if err != nil {
			return nil, err
		}
		delete(b.Tensors, data.Labels) // there are none: no loss is wanted
		probabilities := tensor.Softmax(c.Ctx, p.model.Forward(c, b).Logits, 1)
		best := tensor.ToSlice[int64](c.Ctx, tensor.ArgMax(c.Ctx, probabilities, 1, false))
		score := tensor.ToSlice[float32](c.Ctx, tensor.Max(c.Ctx, probabilities, 1, false))
		for i := range best {
			out = append(out, prediction{p.labels[best[i]], float64(score[i])})
		}
		return nil, nil
	})
	return out, err
}

// serve answers requests by a saved classifier until ctx ends.
func serve(ctx context.Context, dir string, s *ServeArguments, out io.Writer) error {
	saved, err := open(dir)
	if err != nil {
		return err
	}
	net, ok := saved.Model.(*gpt2.Classifier)
	if !ok || net.Cfg.PadTokenID == nil {
		return fmt.Errorf("%s is not a text classifier with a pad_token_id: want a model that this program saved", dir)
	}
	config, err := readTokenizerConfig(saved)
	if err != nil {
		return err
	}
	r := newReader(net, saved.Tokenizer, config)
	b := service.NewBatcher(s.MaxBatchSize, newPredictor(net, r).predict)
	defer b.Close()
	return service.Serve(ctx, s.Serve, service.Handler(b, decode), out)
}

// decode reads a request.
func decode(body io.Reader) (string, error) {
	const want = `{"text": "…"} with a text that is not empty`
	var in struct{ Text *string }
	if err := service.Object(body, &in, want); err != nil {
		return "", err
	}
	if in.Text == nil || *in.Text == "" {
		return "", errors.New("want " + want)
	}
	return *in.Text, nil
}
