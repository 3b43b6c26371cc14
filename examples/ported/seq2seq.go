// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/tabular"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/metrics"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// columns are the settings of the scripts that write texts about texts.
type columns struct {
	TrainFile      string `json:"train_file" usage:"CSV file"`
	ValidationFile string `json:"validation_file" usage:"CSV file"`
	TextColumn     string `json:"text_column" usage:"column of what is read"`
	SummaryColumn  string `json:"summary_column" usage:"column of what is written"`
}

// example is a text and its summary. The model continues the text and a special token with the summary.
type example struct{ text, summary []int32 }

// read reads a file's columns.
func (f *columns) read(path string) (rows [][2]string, err error) {
	table, err := tabular.Read(path)
	if err != nil {
		return nil, err
	}
	text, err1 := table.Column(f.TextColumn)
	summary, err2 := table.Column(f.SummaryColumn)
	for _, row := range table.Rows {
		rows = append(rows, [2]string{row[text], row[summary]})
	}
	return rows, errors.Join(err1, err2)
}

func examples(tok *tokenizers.Tokenizer, rows [][2]string) (list data.Slice[example], err error) {
	for _, row := range rows {
		text, err1 := tok.Encode(row[0])
		summary, err2 := tok.Encode(row[1])
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		list = append(list, example{append(text, 0), append(summary, 0)})
	}
	return list, nil
}

// collate is DataCollatorForSeq2Seq for a model without an encoder: labels are those of the summary alone.
func collate(c *tensor.Ctx, samples []example) (*data.Batch, error) {
	width := 0
	for _, s := range samples {
		width = max(width, len(s.text)+len(s.summary))
	}
	var ids, mask, labels []int64
	count := 0.0
	for _, s := range samples {
		all := slices.Concat(s.text, s.summary)
		for i := range width {
			id, real, label := int64(pad), int64(0), int64(tensor.IgnoreIndex)
			if i < len(all) {
				id, real = int64(all[i]), 1
			}
			if next := i + 1; next >= len(s.text) && next < len(all) {
				label = int64(all[next])
				count++
			}
			ids, mask, labels = append(ids, id), append(mask, real), append(labels, label)
		}
	}
	tensors := map[string]*tensor.Tensor{}
	for name, list := range map[string][]int64{data.InputIDs: ids, data.AttentionMask: mask, data.ShiftLabels: labels} {
		tensors[name] = tensor.FromSlice(c, list, len(samples), width)
	}
	return &data.Batch{Size: len(samples), Count: count, Tensors: tensors}, nil
}

// summarization is transformers' run_summarization.py for a model without an encoder.
func summarization(ctx context.Context, p *program.Process) error {
	return seq2seq(ctx, p, "out/run_summarization", func(references, predictions []string) (map[string]float64, error) {
		r, err := metrics.ROUGE(references, predictions, metrics.RougeOptions{Stem: true})
		return map[string]float64{"rouge1": 100 * r.Rouge1, "rouge2": 100 * r.Rouge2, "rougeL": 100 * r.RougeL}, err
	})
}

// translation is transformers' run_translation.py for a model without an encoder.
func translation(ctx context.Context, p *program.Process) error {
	return seq2seq(ctx, p, "out/run_translation", func(references, predictions []string) (map[string]float64, error) {
		bleu, err := metrics.BLEU(references, predictions)
		return map[string]float64{"bleu": bleu}, err
	})
}

func seq2seq(ctx context.Context, p *program.Process, out string,
	compute func(references, predictions []string) (map[string]float64, error)) error {
	a, f := args.Default(out), &columns{TextColumn: "text", SummaryColumn: "summary"}
	a.LearningRate, a.PredictWithGenerate = 3e-3, true
	if _, err := p.Parse(args.Bind(p.Flags(), a, f)); err != nil {
		return err
	}
	rows, err1 := f.read(f.TrainFile)
	held, err2 := f.read(f.ValidationFile)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	tok, err := tokenizers.Train(ctx, func(yield func(string, error) bool) {
		for _, row := range rows {
			if !yield(row[0], nil) || !yield(row[1], nil) {
				return
			}
		}
	}, tokenizers.TrainOptions{VocabSize: 300, SpecialTokens: []string{endOfText, padding}})
	if err != nil {
		return err
	}
	train, err1 := examples(tok, rows)
	eval, err2 := examples(tok, held)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 1, 64, 4, tok.VocabSize(), 64
	model, err := gpt2.New(nn.NewInit(tensor.CPU(), a.Seed), cfg)
	if err != nil {
		return err
	}
	t := trainer.New(model, a, trainer.WithTrainData(data.NewSource(train, collate)),
		trainer.WithEvalData(data.NewSource(eval, collate)),
		trainer.WithGeneration(generation.Options{EOS: []int{0}}.Continue),
		trainer.WithComputeMetrics(func(e trainer.EvalPrediction) (map[string]float64, error) {
			references, predictions, err := e.Texts(func(ids []int) (string, error) {
				list := make([]int32, len(ids))
				for i, id := range ids {
					list[i] = int32(id)
				}
				return tok.DecodeText(list)
			})
			if err != nil {
				return nil, err
			}
			return compute(references, predictions)
		}))
	defer t.Close()
	result, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	metrics, err := t.EvaluateContext(ctx)
	if err != nil {
		return err
	}
	if t.IsMain() {
		p.Printf("%v\n", metrics)
	}
	return errors.Join(t.SaveModel(""), t.SaveMetrics("train", result.Metrics), t.SaveMetrics("eval", metrics),
		t.SaveState())
}
