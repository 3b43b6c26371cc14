// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// errOtherInterrupted is the reason for a rank to stop whose own context has not ended.
var errOtherInterrupted = errors.New("trainer: another rank was interrupted")

// buildRanks creates the accelerator, and the trainers of the other ranks that run in
// this process (num_replicas). These have the same arguments and data, and their own
// model and state.
func (t *Trainer) buildRanks() error {
	opts := []accelerate.Option{accelerate.WithLogger(t.levelLogger(t.args.SlogLevel()))}
	if t.device != nil {
		opts = append(opts, accelerate.WithDevice(t.device))
	}
	if t.group != nil {
		opts = append(opts, accelerate.WithGroup(t.group))
	}
	if t.args.NumReplicas == 1 {
		var err error
		if t.acc, err = accelerate.New(t.args, opts...); err == nil {
			t.log = t.rankLogger(t.acc)
		}
		return err
	}
	ranks, err := accelerate.Replicas(t.args, t.args.NumReplicas, opts...)
	if err != nil {
		return err
	}
	t.acc = ranks[0]
	for _, acc := range ranks[1:] {
		replica := *t
		replica.acc, replica.replicas, replica.display = acc, nil, nil
		replica.args = acc.Args()
		replica.user = slices.DeleteFunc(slices.Clone(t.user), func(c callbacks.Callback) bool {
			_, every := c.(callbacks.EveryRank)
			return !every
		})
		replica.log = t.rankLogger(acc)
		if replica.model, err = t.cloneModel(acc); err != nil {
			return err
		}
		t.replicas = append(t.replicas, &replica)
	}
	t.log = t.rankLogger(t.acc)
	return t.checkMetrics()
}

// cloneModel creates the model of another rank.
func (t *Trainer) cloneModel(acc *accelerate.Accelerator) (models.Model, error) {
	if t.newModel != nil {
		m, err := t.newModel()
		if err != nil {
			return nil, fmt.Errorf("trainer: WithModelInit, rank %d: %w", acc.Rank(), err)
		}
		return m, nil
	}
	return nn.Clone(t.model, acc.Device())
}

// rankLogger is the logger of a rank. Rank 0 logs at log_level, and so does the first rank of another host unless
// log_on_each_node is off; the others log at log_level_replica, since rank 0 says most already.
func (t *Trainer) rankLogger(acc *accelerate.Accelerator) *slog.Logger {
	if acc.IsMain() {
		return t.levelLogger(t.args.SlogLevel())
	}
	level, set := t.args.SlogLevelReplica()
	if t.args.LogOnEachNode && acc.IsLocalMain() {
		level, set = t.args.SlogLevel()
	}
	return t.levelLogger(level, set).With("rank", acc.Rank())
}

// levelLogger is the trainer's logger at a level, if one is set.
func (t *Trainer) levelLogger(level slog.Level, set bool) *slog.Logger {
	if !set {
		return t.log
	}
	return slog.New(levelHandler{t.log.Handler(), level, !t.given})
}

// levelHandler passes records of a minimum level.
type levelHandler struct {
	slog.Handler
	level slog.Level
	alone bool // the handler's own level does not count
}

// Enabled implements slog.Handler.
func (h levelHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level && (h.alone || h.Handler.Enabled(ctx, l))
}

// WithAttrs implements slog.Handler.
func (h levelHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return levelHandler{h.Handler.WithAttrs(a), h.level, h.alone}
}

// WithGroup implements slog.Handler.
func (h levelHandler) WithGroup(name string) slog.Handler {
	return levelHandler{h.Handler.WithGroup(name), h.level, h.alone}
}

// every calls f for each rank of this process, each in its own goroutine, and returns when
// all have ended. A rank that fails aborts the others, because they would wait for it; its
// error is returned instead of theirs. ctx ends only the waiting for other processes.
func (t *Trainer) every(ctx context.Context, f func(rank *Trainer) error) error {
	defer t.acc.Device().Sync() // the caller reads the model with a context of its own
	if len(t.replicas) == 0 {
		err := t.acc.Open(ctx)
		switch {
		case err == nil:
			err = f(t)
		case ctx.Err() != nil:
			return fmt.Errorf("%w while waiting for the other ranks: %w", ErrInterrupted, err)
		}
		if err != nil && !errors.Is(err, ErrInterrupted) {
			t.acc.Abort(err)
		}
		return err
	}
	ranks := append([]*Trainer{t}, t.replicas...)
	accs := make([]*accelerate.Accelerator, len(ranks))
	for i, rank := range ranks {
		accs[i] = rank.acc
	}
	interrupted := make([]error, len(ranks)) // an interrupt that all ranks agreed on is not a failure of one, which would abort the others
	err := accelerate.RunRanks(ctx, accs, func(acc *accelerate.Accelerator) error {
		err := f(ranks[acc.Rank()])
		if errors.Is(err, ErrInterrupted) {
			interrupted[acc.Rank()], err = err, nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return interrupted[0]
}

// MergeableMetric is a Metric for several ranks. Each rank sees some of the batches and
// exports what it gathered; every rank then merges all parts, in rank order.
type MergeableMetric interface {
	Metric
	// ExportPart returns what this rank's calls of Update gathered.
	ExportPart() ([]byte, error)
	// MergeParts replaces the gathered state by the parts of all ranks.
	MergeParts(parts [][]byte) error
}

// MetricRanks is implemented by metrics that need a separate instance for each additional
// rank.
type MetricRanks interface {
	// ForRank returns a fresh metric of the same kind.
	ForRank() Metric
}

// LossMetric is a Metric computed only from the loss, on any number of ranks.
type LossMetric func(loss EvalLoss) map[string]float64

// Reset does nothing, since a LossMetric keeps no state.
func (LossMetric) Reset() {}

// Update does nothing, since a LossMetric keeps no state.
func (LossMetric) Update(*nn.Ctx, models.Output, *data.Batch) error { return nil }

// Compute calls the function.
func (m LossMetric) Compute(loss EvalLoss) map[string]float64 { return m(loss) }

// checkMetrics gives each additional rank its own metrics, and refuses metrics that do
// not work on several ranks.
func (t *Trainer) checkMetrics() error {
	for _, rank := range t.replicas {
		rank.metrics = nil
		for _, m := range t.metrics {
			if _, ok := m.(LossMetric); ok {
				rank.metrics = append(rank.metrics, m)
				continue
			}
			per, ok := m.(MetricRanks)
			if _, merges := m.(MergeableMetric); !ok || !merges {
				return fmt.Errorf("trainer: metric %T cannot be computed on %d ranks: want a LossMetric, or MergeableMetric and MetricRanks", m, t.acc.WorldSize())
			}
			rank.metrics = append(rank.metrics, per.ForRank())
		}
	}
	return nil
}

// mergeMetrics merges the ranks' parts of each metric.
func (t *Trainer) mergeMetrics(ctx context.Context) error {
	if t.acc.WorldSize() == 1 || t.args.PredictionLossOnly {
		return nil
	}
	for _, m := range t.metrics {
		merges, ok := m.(MergeableMetric)
		if !ok {
			continue
		}
		part, err := merges.ExportPart()
		if err != nil {
			return fmt.Errorf("trainer: metric %T: %w", m, err)
		}
		parts, err := t.acc.GatherBytes(ctx, part)
		if err != nil {
			return err
		}
		if err := merges.MergeParts(parts); err != nil {
			return fmt.Errorf("trainer: metric %T: %w", m, err)
		}
	}
	return nil
}

// gatherPredictions collects the predictions of all ranks, in the dataset's order.
func (t *Trainer) gatherPredictions(ctx context.Context, mine []Prediction) ([]Prediction, error) {
	if t.acc.WorldSize() == 1 {
		return mine, nil
	}
	parts, err := t.acc.GatherBytes(ctx, encodePredictions(mine))
	if err != nil {
		return nil, err
	}
	var all []Prediction
	for rank, part := range parts {
		p, err := decodePredictions(part)
		if err != nil {
			return nil, fmt.Errorf("trainer: predictions of rank %d: %w", rank, err)
		}
		all = append(all, p...)
	}
	slices.SortStableFunc(all, func(a, b Prediction) int { return int(a.Index - b.Index) })
	return all, nil
}

// encodePredictions writes each prediction, little-endian: its index; the number of dims, the dims and the values of
// its logits and of its labels. The number of dims is -1 where there are no labels.
func encodePredictions(list []Prediction) []byte {
	var b bytes.Buffer
	write := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a buffer takes everything
	for _, p := range list {
		write(p.Index)
		write(encodedShape(p.Shape))
		write(p.Logits)
		if p.Labels == nil {
			write(int64(-1))
			continue
		}
		write(encodedShape(p.LabelShape))
		write(p.Labels)
	}
	return b.Bytes()
}

func encodedShape(shape []int) []int64 {
	list := []int64{int64(len(shape))}
	for _, s := range shape {
		list = append(list, int64(s))
	}
	return list
}

func decodePredictions(raw []byte) ([]Prediction, error) {
	r := bytes.NewReader(raw)
	var list []Prediction
	for r.Len() > 0 {
		var p Prediction
		err := binary.Read(r, binary.LittleEndian, &p.Index)
		if err == nil {
			p.Shape, p.Logits, err = decodeRow[float32](r)
		}
		if err == nil && p.Logits == nil {
			err = errors.New("a prediction without logits")
		}
		if err == nil {
			p.LabelShape, p.Labels, err = decodeRow[float64](r)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// decodeRow reads dims and values; nil where the number of dims is -1. It takes memory for what r still has.
func decodeRow[T float32 | float64](r *bytes.Reader) (shape []int, values []T, err error) {
	var dims int64
	if err := binary.Read(r, binary.LittleEndian, &dims); err != nil || dims == -1 {
		return nil, nil, err
	}
	if dims < 0 || dims > tensor.MaxDims {
		return nil, nil, fmt.Errorf("a prediction of %d dims: want at most %d", dims, tensor.MaxDims)
	}
	sizes, n := make([]int64, dims), int64(1)
	if err := binary.Read(r, binary.LittleEndian, sizes); err != nil {
		return nil, nil, err
	}
	for _, s := range sizes {
		if s < 0 || s > 0 && n > int64(r.Len())/s {
			return nil, nil, fmt.Errorf("a prediction of shape %v in %d bytes", sizes, r.Len())
		}
		shape = append(shape, int(s))
		n *= s
	}
	if n*int64(binary.Size(T(0))) > int64(r.Len()) {
		return nil, nil, fmt.Errorf("a prediction of shape %v in %d bytes", sizes, r.Len())
	}
	values = make([]T, n)
	return shape, values, binary.Read(r, binary.LittleEndian, values)
}
