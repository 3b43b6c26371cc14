// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/internal/service"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// prediction is the answer to a request.
type prediction struct {
	Label string  `json:"label"` // what was predicted, as "price"
	Value float64 `json:"value"`
}

// predictor runs a trained model. It belongs to one goroutine, as its context does; the model may be shared.
type predictor struct {
	c        *nn.Ctx
	model    models.Model
	features *features
}

func newPredictor(m models.Model, f *features) *predictor {
	c := tensor.NewCtx(tensor.CPU()).NoGrad() // nothing is recorded for a backward pass
	return &predictor{nn.NewCtx(c, nn.Walk(m), false), m, f}
}

// predict computes a batch of inputs.
func (p *predictor) predict(inputs [][]float32) (out []prediction, err error) {
	p.c.Scope(func(c *nn.Ctx) []*tensor.Tensor { // frees the batch and all that Forward makes
		x := tensor.FromSlice(c.Ctx, slices.Concat(inputs...), len(inputs), p.features.size())
		y := p.model.Forward(c, &data.Batch{Tensors: map[string]*tensor.Tensor{data.Inputs: x}, Size: len(inputs)})
		for _, v := range tensor.ToSlice[float32](c.Ctx, y.Logits) {
			out = append(out, prediction{p.features.Label.Name, p.features.Label.restore(float64(v))})
		}
		return nil
	})
	return out, nil
}

// serve answers predictions of a saved model until ctx ends.
func serve(ctx context.Context, dir string, s *ServeArguments, out io.Writer) error {
	m, err := models.LoadPretrained(tensor.CPU(), dir)
	if err != nil {
		return err
	}
	f, err := loadFeatures(dir)
	if err != nil {
		return err
	}
	net, ok := m.(*mlp.Model)
	if !ok || net.Cfg.Sizes[0] != f.size() || net.Cfg.Sizes[len(net.Cfg.Sizes)-1] != 1 {
		return fmt.Errorf("%s: the model does not fit its %s: want an mlp of %d inputs and one output", dir,
			featuresFile, f.size())
	}
	b := service.NewBatcher(s.MaxBatchSize, newPredictor(net, f).predict)
	defer b.Close()
	return service.Serve(ctx, s.Serve, service.Handler(b, f.decode), out)
}

// decode makes the inputs of a JSON object with the columns of the table.
func (f *features) decode(body io.Reader) ([]float32, error) {
	var names []string
	for _, c := range f.Columns {
		names = append(names, c.Name)
	}
	want := "a JSON object with values of some of the columns " + strings.Join(names, ", ")
	var row map[string]any
	if err := service.Object(body, &row, want); err != nil {
		return nil, err
	}
	values := map[string]string{}
	var faults []error
	for name, v := range row {
		switch v := v.(type) {
		case nil:
		case string, json.Number, bool:
			values[name] = fmt.Sprint(v)
		default:
			faults = append(faults, fmt.Errorf("column %q has %v: want a number or a text", name, v))
		}
		if !slices.Contains(names, name) {
			faults = append(faults, fmt.Errorf("there is no column %q: want some of %s", name,
				strings.Join(names, ", ")))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("no column has a value: want %s", want)
	}
	return f.inputs(func(name string) string { return values[name] })
}
