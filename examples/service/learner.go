// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all" // the architectures that it can load
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// maxBody bounds an example in bytes.
const maxBody = 1 << 20

// learner has the examples, the model that learns them, and the engine with the model that answers.
type learner struct {
	*ServiceArguments
	process *program.Process
	args    *args.TrainingArguments
	base    *models.Pretrained[language.Model] // its model learns
	encoder chat.Encoder
	pad     int32
	engine  *generation.Engine
	now     language.Model // answers new requests
	wake    chan bool      // a round is wanted; has room for one

	mu      sync.Mutex
	samples data.Slice[chat.Sample]
	status  status
}

// status is what the service says of its training.
type status struct {
	Examples int     `json:"examples"`       // so far
	New      int     `json:"new"`            // that no round has begun with
	Rounds   int     `json:"rounds"`         // whose weights answer, or answered
	Training bool    `json:"training"`       // a round is under way
	Loss     float64 `json:"loss"`           // of the last round
	Fault    string  `json:"error,omitzero"` // of the last round
}

func newLearner(p *program.Process, a *args.TrainingArguments, s *ServiceArguments) (*learner, error) {
	base, err := language.Open(s.ModelNameOrPath)
	if err != nil {
		return nil, err
	}
	template, err := chat.LoadTemplate(s.ModelNameOrPath)
	if err != nil {
		return nil, err
	}
	l := &learner{ServiceArguments: s, process: p, args: a, base: base, wake: make(chan bool, 1)}
	l.encoder = chat.Encoder{Tokenizer: base.Tokenizer, Template: template, AssistantOnly: s.AssistantOnlyLoss,
		EOS: template.Special["eos_token"], MaxLength: base.Model.ContextLength()}
	for _, id := range base.Model.EndTokens() {
		l.encoder.Ends = append(l.encoder.Ends, int32(id))
	}
	turn, err := template.TurnEnds(base.Tokenizer)
	if err != nil {
		return nil, err
	}
	l.encoder.Ends = append(l.encoder.Ends, turn...)
	if id, ok := base.Tokenizer.TokenID(template.Special["pad_token"]); ok {
		l.pad = id // what is padding is no label, whatever token it is
	}
	if l.now, err = nn.Clone(base.Model, tensor.CPU()); err != nil {
		return nil, err
	}
	l.engine = generation.NewEngine(tensor.CPU(), l.now, generation.EngineConfig{})
	return l, nil
}

// takeExample keeps a row to learn, in any form that package chat reads. What would teach nothing, or not to stop, is
// refused.
func (l *learner) takeExample(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var sample chat.Sample
	if err == nil {
		var row chat.Row
		if row, err = chat.ParseRow(body); err == nil {
			sample, err = l.encoder.Encode(row)
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	l.mu.Lock()
	full := len(l.samples) >= l.MaxExamples
	if !full {
		l.samples = append(l.samples, sample)
		l.status.Examples++
		l.status.New++
	}
	enough := l.TrainAfter > 0 && l.status.New >= l.TrainAfter
	l.mu.Unlock()
	if full {
		fail(w, http.StatusTooManyRequests, fmt.Errorf("there are %d examples, max_examples", l.MaxExamples))
		return
	}
	if enough {
		l.begin()
	}
	reply(w, http.StatusAccepted, l.state())
}

// begin asks for a round, which follows the one that is under way.
func (l *learner) begin() {
	select {
	case l.wake <- true:
	default:
	}
}

func (l *learner) state() status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// train runs rounds until ctx ends. A round that fails is said, and the weights before it answer on.
func (l *learner) train(ctx context.Context) error {
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return nil
		}
		l.mu.Lock()
		samples := l.samples[:len(l.samples):len(l.samples)]
		if len(samples) > 0 {
			l.status.New, l.status.Training = 0, true
		}
		l.mu.Unlock()
		if len(samples) == 0 {
			continue
		}
		loss, err := l.round(ctx, samples)
		if ctx.Err() != nil {
			return nil // the folder has the last whole round
		}
		l.mu.Lock()
		l.status.Training, l.status.Fault = false, ""
		if err == nil {
			l.status.Rounds++
			l.status.Loss = loss
		} else {
			l.status.Fault = err.Error()
		}
		l.mu.Unlock()
		if err != nil {
			fmt.Fprintln(l.process.Stderr, "training:", err)
		}
	}
}

// round trains on samples, saves, and has new requests answered by a copy of the new weights. The copy before it is
// given up when the last request that it answers has ended.
func (l *learner) round(ctx context.Context, samples data.Slice[chat.Sample]) (loss float64, err error) {
	t := trainer.New(l.base.Model, l.args, trainer.WithTrainData(data.NewSource(samples, chat.Collate(l.pad))),
		trainer.WithSidecars(l.base.Files...), trainer.WithDisplay(l.process.Stderr))
	defer t.Close() // what went wrong before is the error to report
	result, err := t.TrainContext(ctx)
	if err != nil {
		return 0, err
	}
	if err := t.SaveModel(""); err != nil {
		return 0, err
	}
	next, err := nn.Clone(l.base.Model, tensor.CPU())
	if err != nil {
		return 0, err
	}
	old := l.now
	l.now = next
	if err := l.engine.Swap(ctx, tensor.CPU(), next); err != nil {
		return 0, err
	}
	for _, p := range nn.NamedParameters(old) {
		p.Tensor.Free()
	}
	return result.TrainingLoss, nil
}

// fail answers an error.
func fail(w http.ResponseWriter, status int, err error) {
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		status = http.StatusRequestEntityTooLarge
	}
	reply(w, status, map[string]any{"error": map[string]string{"message": err.Error(),
		"type": "invalid_request_error"}})
}

// reply writes JSON. A client that has gone away does not hear it.
func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
