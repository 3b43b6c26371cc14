// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/text"
	backend "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// tokensFile is the name, in the folder of --save, of the tokens that a peer is to train on.
const tokensFile = "tokens.u16"

// trainGPT2 trains GPT-2 on bytes of text.
func trainGPT2(s *settings, _ []string) error {
	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = s.layers, s.width, s.heads, s.vocab, s.block
	cfg.ResidPdrop, cfg.EmbdPdrop, cfg.AttnPdrop = s.dropout, s.dropout, s.dropout
	if cfg.VocabSize < 256 {
		return fmt.Errorf("--vocab_size %d: want at least 256, a token for each byte", cfg.VocabSize)
	}
	return trainText(s, func(in *nn.Init) (languageModel, error) { return gpt2.New(in, cfg) })
}

// trainDecoder trains a model of --model_config on bytes of text.
func trainDecoder(s *settings, _ []string) error {
	cfg, _, err := s.modelConfig()
	if err != nil {
		return err
	}
	return trainText(s, func(in *nn.Init) (languageModel, error) { return transformer.New(in, cfg) })
}

// modelConfig reads --model_config, and returns its text too.
func (s *settings) modelConfig() (cfg transformer.Config, text []byte, err error) {
	if text, err = os.ReadFile(s.config); err != nil {
		return cfg, nil, fmt.Errorf("--model_config: %w", err)
	}
	if cfg, err = transformer.ParseConfig(text); err != nil {
		return cfg, nil, fmt.Errorf("%s: %w", s.config, err)
	}
	return cfg, text, nil
}

// languageModel is a model that can tell how much it computes.
type languageModel interface {
	models.Model
	FLOPsPerToken(tokens int) float64
}

// trainText trains a language model on bytes of text.
func trainText(s *settings, build func(in *nn.Init) (languageModel, error)) error {
	tokens, err := source(s.text, s.steps*s.batch*s.block)
	if err != nil {
		return err
	}
	if s.save != "" {
		raw := make([]byte, 0, 2*len(tokens))
		for _, id := range tokens {
			raw = append(raw, byte(id), byte(id>>8))
		}
		if err := os.MkdirAll(s.save, 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.save, tokensFile), raw, 0o666); err != nil {
			return err
		}
	}
	blocks := make(data.Slice[[]int32], len(tokens)/s.block)
	for i := range blocks {
		blocks[i] = tokens[i*s.block:][:s.block]
	}
	var flops float64
	t := training{settings: s, unit: "tokens/s", perStep: float64(s.batch * s.block),
		data: data.NewSource(blocks, data.CausalLM(0)),
		model: func(in *nn.Init) (models.Model, error) {
			m, err := build(in)
			if err == nil {
				flops = m.FLOPsPerToken(s.block)
			}
			return m, err
		},
		batch: func(c *tensor.Ctx, samples int) *data.Batch {
			b, err := data.CausalLM(0)(c, blocks[:samples])
			if err != nil {
				panic(err) // blocks are of one length
			}
			return b
		}}
	rate, err := t.run()
	if err == nil {
		result(s.row+"_matrix_rate", rate*flops/1e12, "TFLOP/s")
	}
	return err
}

// source is n bytes of the files of a folder, or of the Go standard library's source, over again if there are not so
// many.
func source(folder string, n int) ([]int32, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if folder == "" {
		var root string
		if root, err = text.GoRoot(); err == nil {
			files, _, err = text.GoSource(root)
		}
	}
	if err != nil {
		return nil, err
	}
	tokens := make([]int32, 0, n)
	for len(tokens) < n {
		before := len(tokens)
		for _, name := range files {
			raw, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			for _, b := range raw[:min(len(raw), n-len(tokens))] {
				tokens = append(tokens, int32(b))
			}
			if len(tokens) == n {
				break
			}
		}
		if len(tokens) == before {
			return nil, fmt.Errorf("the text of %q is empty: want files with text", folder)
		}
	}
	return tokens, nil
}

// trainResNet trains ResNet-18 on noise.
func trainResNet(s *settings, _ []string) error {
	const classes, kept = 1000, 64 // pictures that are kept, and come again
	names := make([]string, classes)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	size := 3 * s.image * s.image
	noise := make([]float32, (kept+s.batch)*size) // so that a batch lies in one piece, as PyTorch's does
	rng.FillNormal32(noise[:kept*size], rng.Key(1, "images", 0), 0, 0)
	for i := kept * size; i < len(noise); i += kept * size {
		copy(noise[i:], noise[:kept*size])
	}
	samples := make(data.Slice[int64], s.steps*s.batch)
	for i := range samples {
		samples[i] = int64(i)
	}
	collate := func(c *tensor.Ctx, samples []int64) (*data.Batch, error) {
		labels := make([]int64, len(samples))
		for i, n := range samples {
			labels[i] = n % kept * 7 % classes
		}
		pixels := noise[int(samples[0])%kept*size:][:len(samples)*size]
		return &data.Batch{Count: float64(len(samples)), Size: len(samples), Tensors: map[string]*tensor.Tensor{
			"pixel_values": tensor.FromSlice(c, pixels, len(samples), 3, s.image, s.image),
			data.Labels:    tensor.FromSlice(c, labels, len(samples))}}, nil
	}
	t := training{settings: s, unit: "images/s", perStep: float64(s.batch),
		data:  data.NewSource(samples, collate),
		model: func(in *nn.Init) (models.Model, error) { return resnet.New(in, resnet.ResNet18(names...)) },
		batch: func(c *tensor.Ctx, n int) *data.Batch {
			b, err := collate(c, samples[:n])
			if err != nil {
				panic(err) // it gives none
			}
			return b
		}}
	_, err := t.run()
	return err
}

// training is a run of the Trainer.
type training struct {
	*settings
	unit    string
	perStep float64 // units of a step
	data    data.Source
	model   func(in *nn.Init) (models.Model, error)
	batch   func(c *tensor.Ctx, samples int) *data.Batch
}

// run trains, and prints the rate, memory, the last loss and what the weights are.
func (t *training) run() (rate float64, err error) {
	d, err := t.open()
	if err != nil {
		return 0, err
	}
	defer d.Close()
	work, err := os.MkdirTemp("", "bench-gpu-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	a := args.Default(work)
	a.PerDeviceTrainBatchSize, a.MaxSteps, a.BF16, a.LearningRate = t.settings.batch, t.steps, !t.float32, t.rate
	a.LRSchedulerType, a.LoggingStrategy, a.SaveStrategy = "constant", "no", "no"
	a.ReportTo, a.Seed, a.TrainSamplingStrategy = []string{"none"}, 42, args.SamplingSequential
	a.DataloaderNumWorkers = t.workers
	quiet := true
	a.DisableTQDM = &quiet
	m, err := t.model(nn.NewInit(tensor.CPU(), a.Seed))
	if err != nil {
		return 0, err
	}
	w := &watch{}
	tr := trainer.New(m, a, trainer.WithTrainData(t.data), trainer.WithDevice(d), trainer.WithCallbacks(w))
	if t.save != "" {
		if err := tr.SaveModel(t.save); err != nil {
			return 0, err
		}
	}
	w.last = time.Now()
	if _, err := tr.Train(); err != nil {
		return 0, err
	}
	rate = t.perStep / stats.Median(w.seconds[len(w.seconds)/3:])
	result(t.row, rate, t.unit)
	result(t.row+"_memory", float64(d.MemStats().Peak)/(1<<30), "GiB")
	estimate, err := trainer.EstimateMemory(a, d, 1, t.model, t.batch)
	if err != nil {
		return 0, err
	}
	result(t.row+"_memory_estimate", float64(estimate.Peak)/(1<<30), "GiB")
	weights, err := models.WeightFiles(m, 0, nil)
	if err != nil {
		return 0, err
	}
	digest := sha256.New()
	if err := weights[0].Write(digest); err != nil {
		return 0, err
	}
	fmt.Printf("%s: first step %.2f s, first loss %.4f, last %.4f\nWEIGHTS %s %x\n", t.row, w.seconds[0], w.losses[0],
		w.losses[len(w.losses)-1], t.row, digest.Sum(nil))
	if gpu, ok := joint.Backend(d).(*backend.Device); ok {
		fmt.Printf("%d kernels and products; CUDA graphs: %+v\n", gpu.Launches(), gpu.Graphs())
	}
	return rate, w.write(t.curve)
}

// watch takes the time and the loss of each step.
type watch struct {
	callbacks.Base
	last    time.Time
	seconds []float64
	losses  []float64
}

// OnStepEnd is called when the step's numbers have been read, which the device has then computed.
func (w *watch) OnStepEnd(e *callbacks.Event) error {
	now := time.Now()
	w.seconds, w.losses, w.last = append(w.seconds, now.Sub(w.last).Seconds()), append(w.losses, e.Step.Loss), now
	if math.IsNaN(e.Step.Loss) {
		return errors.New("the loss is not a number")
	}
	return nil
}

// write writes the losses, one a line.
func (w *watch) write(file string) error {
	if file == "" {
		return nil
	}
	var lines []byte
	for i, loss := range w.losses {
		lines = fmt.Appendf(lines, "%d %.6f\n", i+1, loss)
	}
	return os.WriteFile(file, lines, 0o666)
}
