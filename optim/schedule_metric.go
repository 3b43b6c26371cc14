// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/internal/jsonfloat"
)

// MetricSchedule sets the learning rates of an optimizer's groups by a metric of evaluations, in place of the number of
// steps. Unlike a Schedule it has a state, which a checkpoint saves as JSON.
type MetricSchedule interface {
	// Observe takes the metric of an evaluation and decides the rates of the steps after it.
	Observe(metric float64)
	// Rates are the learning rates of the groups for the next step: see Optimizer.SetRates.
	Rates() []float64
	json.Marshaler
	json.Unmarshaler
}

// metricSchedules has the constructor of every schedule that follows a metric under HuggingFace's name for it.
var metricSchedules = map[string]func(metricRule, catalog.Values, []float64) MetricSchedule{
	"reduce_lr_on_plateau": newPlateau,
	"greedy":               newGreedy,
}

// NewMetricSchedule makes a schedule that follows a metric by HuggingFace's name for it (lr_scheduler_type):
// reduce_lr_on_plateau, with the rules of torch.optim.lr_scheduler.ReduceLROnPlateau, or greedy, with those of
// transformers.GreedyLR (arXiv 2512.14527).
//
// rates are the learning rates of the optimizer's groups to begin with (Optimizer.BaseLRs). kwargs
// (lr_scheduler_kwargs; may be nil) are the schedule's own settings, which docs/arguments.md lists with their
// defaults. min_lr and max_lr are numbers, or lists with a number for each group. The error lists every fault.
func NewMetricSchedule(name string, rates []float64, kwargs map[string]any) (MetricSchedule, error) {
	row, _ := catalog.ScheduleNamed(name)
	if !row.ByMetric {
		return nil, fmt.Errorf("optim: schedule is %q: want one that follows a metric: %s", name,
			strings.Join(sortedKeys(metricSchedules), ", "))
	}
	var faults []error
	for _, want := range row.Wants(kwargs, math.NaN()) {
		faults = append(faults, fmt.Errorf("optim: schedule %s: the settings are %v: want %s", name, kwargs, want))
	}
	values := row.Settings.Fill(kwargs)
	for _, key := range []string{"min_lr", "max_lr"} {
		if _, ok := values.Numbers(key, len(rates)); !ok && values[key] != nil && len(faults) == 0 {
			faults = append(faults, fmt.Errorf("optim: schedule %s: %s is %v: want a number, or one for each of %d "+
				"parameter groups", name, key, values[key], len(rates)))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return metricSchedules[name](newMetricRule(values, len(rates)), values, slices.Clone(rates)), nil
}

// metricRule are the settings that schedules by a metric share.
type metricRule struct {
	greater, relative  bool // whether a greater metric is better, and threshold a share of the best one
	threshold          float64
	patience, cooldown int64
	factor, eps        float64
	least              []float64 // of each group
}

func newMetricRule(v catalog.Values, groups int) metricRule {
	least, _ := v.Numbers("min_lr", groups)
	return metricRule{
		greater: v.Text("mode") == "max", relative: v.Text("threshold_mode") == "rel",
		threshold: v.Number("threshold", 0),
		patience:  int64(v.Number("patience", 0)), cooldown: int64(v.Number("cooldown", 0)),
		factor: v.Number("factor", 0), eps: v.Number("eps", 0), least: least,
	}
}

// worst is the best metric before the first one.
func (m *metricRule) worst() jsonfloat.Float {
	if m.greater {
		return jsonfloat.Float(math.Inf(-1))
	}
	return jsonfloat.Float(math.Inf(1))
}

// better reports whether a metric is better than the best one by more than the threshold. NaN never is.
func (m *metricRule) better(metric float64, best jsonfloat.Float) bool {
	b := float64(best)
	switch {
	case m.greater && m.relative:
		return metric > b*(1+m.threshold)
	case m.greater:
		return metric > b+m.threshold
	case m.relative:
		return metric < b*(1-m.threshold)
	}
	return metric < b-m.threshold
}

// reduce multiplies the rates by the factor, down to the least ones. Changes of at most eps are left out.
func (m *metricRule) reduce(rates []float64) {
	for i, old := range rates {
		if lower := max(old*m.factor, m.least[i]); old-lower > m.eps {
			rates[i] = lower
		}
	}
}

// plateau is reduce_lr_on_plateau: it multiplies the rates by a factor after more than patience evaluations in a row
// that were not better than the best one.
type plateau struct {
	metricRule
	state plateauState
}

// plateauState has the names of PyTorch's state_dict.
type plateauState struct {
	Rates    []float64       `json:"last_lr"`
	Best     jsonfloat.Float `json:"best"`
	Bad      int64           `json:"num_bad_epochs"`
	Cooldown int64           `json:"cooldown_counter"`
}

func newPlateau(rule metricRule, _ catalog.Values, rates []float64) MetricSchedule {
	return &plateau{rule, plateauState{Rates: rates, Best: rule.worst()}}
}

// Rates implements MetricSchedule.
func (p *plateau) Rates() []float64 { return slices.Clone(p.state.Rates) }

// Observe implements MetricSchedule.
func (p *plateau) Observe(metric float64) {
	s := &p.state
	if p.better(metric, s.Best) {
		s.Best, s.Bad = jsonfloat.Float(metric), 0
	} else {
		s.Bad++
	}
	if s.Cooldown > 0 {
		s.Cooldown--
		s.Bad = 0
	}
	if s.Bad > p.patience {
		p.reduce(s.Rates)
		s.Cooldown, s.Bad = p.cooldown, 0
	}
}

// MarshalJSON implements MetricSchedule.
func (p *plateau) MarshalJSON() ([]byte, error) { return json.Marshal(p.state) }

// UnmarshalJSON implements MetricSchedule.
func (p *plateau) UnmarshalJSON(text []byte) error {
	var s plateauState
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	if err := s.check(len(p.least)); err != nil {
		return err
	}
	p.state = s
	return nil
}

// check refuses states that no run writes.
func (s *plateauState) check(groups int) error {
	return errors.Join(checkRates("last_lr", s.Rates, groups), checkCount("num_bad_epochs", s.Bad),
		checkCount("cooldown_counter", s.Cooldown))
}

func checkRates(name string, rates []float64, groups int) error {
	if len(rates) != groups {
		return fmt.Errorf("%s has %d rates: want one for each of %d parameter groups", name, len(rates), groups)
	}
	for _, rate := range rates {
		if !(rate >= 0) || math.IsInf(rate, 1) {
			return fmt.Errorf("%s is %v: want finite numbers ≥ 0", name, rates)
		}
	}
	return nil
}

func checkCount(name string, n int64) error {
	if n < 0 || n > maxSteps {
		return fmt.Errorf("%s is %d: want 0 to %d", name, n, int64(maxSteps))
	}
	return nil
}

// greedy raises the rates after more than patience evaluations in a row that were better than the best one, and lowers
// them after as many that were not.
type greedy struct {
	metricRule
	warmup, resetStart int64
	window             int // of the average of metrics; 0: none
	most               []float64
	state              greedyState
}

// greedyState has the names of transformers' state_dict.
type greedyState struct {
	plateauState
	Good    int64     `json:"num_good_epochs"`
	Warmup  int64     `json:"warmup_counter"`
	Reset   int64     `json:"reset_start"` // reductions with all rates at their least until the reset
	Initial []float64 `json:"init_lrs"`
	Average averaged  `json:"streaming_avg"`
}

// averaged are the last metrics, with their sum as it was added up.
type averaged struct {
	Values []jsonfloat.Float `json:"values"`
	Sum    jsonfloat.Float   `json:"sum"`
}

func newGreedy(rule metricRule, v catalog.Values, rates []float64) MetricSchedule {
	g := &greedy{metricRule: rule, warmup: int64(v.Number("warmup", 0)), resetStart: int64(v.Number("reset_start", 0))}
	if v.On("smooth") {
		g.window = int(v.Number("window_size", 1))
	}
	g.most, _ = v.Numbers("max_lr", len(rates))
	g.state.Initial = rates
	g.reset()
	return g
}

// reset restarts the schedule.
func (g *greedy) reset() {
	initial := g.state.Initial
	g.state = greedyState{plateauState: plateauState{Rates: slices.Clone(initial), Best: g.worst()},
		Reset: g.resetStart, Initial: initial}
}

// Rates implements MetricSchedule.
func (g *greedy) Rates() []float64 { return slices.Clone(g.state.Rates) }

// Observe implements MetricSchedule.
func (g *greedy) Observe(metric float64) {
	s := &g.state
	if g.window > 0 {
		metric = s.Average.add(metric, g.window)
	}
	switch {
	case s.Cooldown > 0:
		s.Cooldown--
		s.Bad, s.Good = 0, 0
		return
	case s.Warmup > 0:
		s.Warmup--
		s.Bad, s.Good = 0, 0
		return
	case g.better(metric, s.Best):
		s.Best, s.Bad = jsonfloat.Float(metric), 0
		s.Good++
	default:
		s.Bad++
		s.Good = 0
	}
	switch {
	case s.Good > g.patience:
		g.raise()
		s.Warmup, s.Good = g.warmup, 0
	case s.Bad > g.patience:
		g.lower()
		s.Cooldown, s.Bad = g.cooldown, 0
	}
}

// raise divides the rates by the factor, up to the most.
func (g *greedy) raise() {
	for i, old := range g.state.Rates {
		if higher := min(old/g.factor, g.most[i]); higher-old > g.eps {
			g.state.Rates[i] = higher
		}
	}
	g.state.Reset = g.resetStart
}

// lower reduces the rates, and restarts after enough reductions that found all rates at or below their minimum.
func (g *greedy) lower() {
	s := &g.state
	g.reduce(s.Rates)
	for i, rate := range s.Rates {
		if rate > g.least[i] {
			return
		}
	}
	if s.Reset--; s.Reset <= 0 {
		g.reset()
	}
}

// add adds a metric and returns the mean of the last ones, at most so many.
func (a *averaged) add(metric float64, window int) float64 {
	a.Values = append(a.Values, jsonfloat.Float(metric))
	a.Sum += jsonfloat.Float(metric)
	if len(a.Values) > window {
		a.Sum -= a.Values[0]
		a.Values = a.Values[1:]
	}
	return float64(a.Sum) / float64(len(a.Values))
}

// MarshalJSON implements MetricSchedule.
func (g *greedy) MarshalJSON() ([]byte, error) { return json.Marshal(g.state) }

// UnmarshalJSON implements MetricSchedule.
func (g *greedy) UnmarshalJSON(text []byte) error {
	var s greedyState
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	groups := len(g.least)
	if err := errors.Join(s.check(groups), checkRates("init_lrs", s.Initial, groups),
		checkCount("num_good_epochs", s.Good), checkCount("warmup_counter", s.Warmup),
		checkCount("reset_start", s.Reset)); err != nil {
		return err
	}
	if len(s.Average.Values) > g.window {
		return fmt.Errorf("streaming_avg has %d values: want at most %d (window_size, with smooth)",
			len(s.Average.Values), g.window)
	}
	g.state = s
	return nil
}
