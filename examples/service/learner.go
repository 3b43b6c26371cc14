// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/examples/internal/language"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all" // the architectures that it can load
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/serve"
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
	on      *tensor.Device                     // where it trains and answers
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
	Training bool    `json:"training"`       // a round is under way, or wanted
	Loss     float64 `json:"loss"`           // of the last round
	Fault    string  `json:"error,omitzero"` // of the last round
}

func newLearner(p *program.Process, a *args.TrainingArguments, s *ServiceArguments) (*learner, error) {
	dev, err := accelerate.OpenDevice(a.Device) // the first rank's
	if err != nil {
		return nil, err
	}
	base, err := language.OpenOn(dev, s.ModelNameOrPath)
	if err != nil {
		return nil, err
	}
	template, err := chat.LoadTemplate(s.ModelNameOrPath)
	if err != nil {
		return nil, err
	}
	l := &learner{ServiceArguments: s, process: p, args: a, on: dev, base: base, wake: make(chan bool, 1)}
	l.encoder = chat.Encoder{Tokenizer: base.Tokenizer, Template: template, AssistantOnly: s.AssistantOnlyLoss,
		EOS: template.Special["eos_token"], MaxLength: min(cmp.Or(s.MaxLength, base.Model.ContextLength()),
			base.Model.ContextLength())}
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
	if l.now, err = nn.Clone(base.Model, dev); err != nil {
		return nil, err
	}
	l.engine = generation.NewEngine(dev, l.now, generation.EngineConfig{})
	return l, nil
}

// takeExample keeps a row to learn, in any form that package chat reads. What would teach nothing, or not to stop, is
// refused.
func (l *learner) takeExample(w http.ResponseWriter, r *http.Request) {
	body, err := serve.ReadBody(w, r, maxBody)
	var sample chat.Sample
	if err == nil {
		var row chat.Row
		if row, err = chat.ParseRow(body); err == nil {
			sample, err = l.encoder.Encode(row)
		}
	}
	if err == nil && sample.Cut > 0 { // with its end, or all that is learned, and a batch without any fails
		err = fmt.Errorf("the example has %d tokens: want at most %d (max_length)", len(sample.IDs)+sample.Cut,
			l.encoder.MaxLength)
	}
	if err != nil {
		serve.Fail(w, http.StatusBadRequest, err)
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
		serve.Fail(w, http.StatusTooManyRequests, fmt.Errorf("there are %d examples, max_examples", l.MaxExamples))
		return
	}
	if enough {
		l.begin()
	}
	serve.Reply(w, http.StatusAccepted, l.state())
}

// startRound is a request for a round.
func (l *learner) startRound(w http.ResponseWriter, _ *http.Request) {
	if l.state().Examples == 0 {
		serve.Fail(w, http.StatusConflict, errors.New("there are no examples to learn: POST /v1/examples sends one"))
		return
	}
	l.begin()
	serve.Reply(w, http.StatusAccepted, l.state())
}

// begin asks for a round, which follows the one that is under way.
func (l *learner) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Training = true
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
		l.status.New = 0
		l.mu.Unlock()
		loss, err := l.round(ctx, samples)
		if ctx.Err() != nil {
			return nil // the folder has the last whole round
		}
		if err != nil {
			l.restore()
		}
		l.mu.Lock()
		l.status.Training, l.status.Fault = len(l.wake) > 0, ""
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

// restore gives the model that learns the weights that answer: those of a round that has failed may be half learned, or
// no use at all, and the next round would continue from them.
func (l *learner) restore() {
	c := tensor.NewCtx(l.on).NoGrad()
	defer c.Sync() // before the next round, which has another context
	good := nn.NamedParameters(l.now)
	for i, p := range nn.NamedParameters(l.base.Model) {
		tensor.CopyInto(c, p.Tensor, good[i].Tensor)
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
	next, err := nn.Clone(l.base.Model, l.on)
	if err != nil {
		return 0, err
	}
	old := l.now
	l.now = next
	if err := l.engine.Swap(ctx, l.on, next); err != nil {
		return 0, err
	}
	for _, p := range nn.NamedParameters(old) {
		p.Tensor.Free()
	}
	return result.TrainingLoss, nil
}
