// SPDX-License-Identifier: Apache-2.0

package callbacks

import "time"

// Speed adds to each record of training steps how fast they were done since the one before: train_steps_per_second,
// train_samples_per_second, and, if samples have tokens, train_tokens_per_second. The time is that of the steps with
// the wait for their data; evaluations and checkpoints are left out.
type Speed struct {
	Base
	meter meter
}

// OnTrainBegin starts the clock.
func (s *Speed) OnTrainBegin(*Event) error { return s.meter.begin() }

// OnEvaluate starts the clock again.
func (s *Speed) OnEvaluate(*Event) error { return s.meter.resume() }

// OnSave starts the clock again.
func (s *Speed) OnSave(*Event) error { return s.meter.resume() }

// OnStepEnd counts the step.
func (s *Speed) OnStepEnd(e *Event) error { return s.meter.step(e.Step) }

// OnLog adds the rates to a record of training steps.
func (s *Speed) OnLog(e *Event) error {
	if e.Record.IsTrain() {
		for key, rate := range s.meter.rates() {
			e.Record[key] = rate
		}
		s.meter.clear()
	}
	return nil
}

// meter counts work and the time that it took.
type meter struct {
	now                    func() time.Time // time.Now if nil
	mark                   time.Time        // since when time counts
	spent                  time.Duration
	steps, samples, tokens int64
}

func (m *meter) clock() time.Time {
	if m.now != nil {
		return m.now()
	}
	return time.Now()
}

func (m *meter) begin() error {
	m.clear()
	return m.resume()
}

func (m *meter) resume() error {
	m.mark = m.clock()
	return nil
}

func (m *meter) clear() { m.spent, m.steps, m.samples, m.tokens = 0, 0, 0, 0 }

func (m *meter) step(s StepStats) error {
	now := m.clock()
	m.spent += now.Sub(m.mark)
	m.mark = now
	m.steps++
	m.samples += s.Samples
	m.tokens += s.Tokens
	return nil
}

// rates returns what was done per second, rounded to three decimals as in HuggingFace's; nothing if no time has passed.
func (m *meter) rates() map[string]float64 {
	seconds := m.spent.Seconds()
	if seconds <= 0 {
		return nil
	}
	out := map[string]float64{"train_steps_per_second": round3(float64(m.steps) / seconds),
		"train_samples_per_second": round3(float64(m.samples) / seconds)}
	if m.tokens > 0 {
		out["train_tokens_per_second"] = round3(float64(m.tokens) / seconds)
	}
	return out
}
