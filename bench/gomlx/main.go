// SPDX-License-Identifier: Apache-2.0

// Gomlx is GoMLX's side of bench/kernels: it reads a row's name per line and answers with the median seconds of one
// run, by GoMLX's Go backend; or "threads" and the number to compute on from then on. Its one row is step: a training
// step of GoMLX's own transformer, 4 layers of width 256 with 8 heads and a vocabulary of 2048, on a batch of 8×128
// with AdamW. It does not clip gradients, which the other side does.
//
// Usage: gomlx THREADS SECONDS_PER_TURN MODE; THREADS is GOMAXPROCS at first. The backend is given a pool of 16 workers
// whatever their number: with its own choice it waits for itself for ever in this step.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomlx/compute"
	_ "github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/layers/activation"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/loss"
	"github.com/gomlx/gomlx/ml/train/optimizer"
	"github.com/gomlx/gomlx/ml/zoo/transformer"
)

const layersCount, width, heads, vocab, batch, block = 4, 256, 8, 2048, 8, 128

func main() {
	log.SetFlags(0)
	out := os.Stdout
	os.Stdout = os.Stderr // GoMLX prints
	if len(os.Args) < 3 {
		log.Fatal("usage: gomlx THREADS SECONDS_PER_TURN")
	}
	turn, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(out, "GoMLX v0.28.6, Go backend")
	var step func()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		name, threads, _ := strings.Cut(lines.Text(), " ")
		switch name {
		case "":
			fmt.Fprintln(out, 0)
		case "threads":
			n, err := strconv.Atoi(threads)
			if err != nil {
				log.Fatal(err)
			}
			runtime.GOMAXPROCS(n)
			fmt.Fprintln(out, 0)
		case "step":
			if step == nil {
				step = newStep()
			}
			fmt.Fprintln(out, timed(step, turn))
		default:
			log.Fatalf("line %q: want step, or threads and a number", lines.Text())
		}
	}
}

// newStep makes a model and returns what runs a step of its training.
func newStep() func() {
	backend, err := compute.NewWithConfig("go:parallelism=16")
	if err != nil {
		log.Fatal(err)
	}
	forward := func(scope *model.Scope, tokens *graph.Node) *graph.Node {
		m := transformer.New(scope).WithVocabSize(vocab).WithEmbedDim(width).WithNumLayers(layersCount).WithNumHeads(
			heads).WithHeadDim(width / heads).
			WithFFNDim(4 * width).WithMaxPosEmbed(block).WithActivation(
			activation.TypeGeluApprox).WithFinalNormalization(layers.NormalizationLayerNorm)
		return m.Logits(tokens, transformer.CallOptions{})
	}
	trainer := train.NewTrainer(backend, model.NewStore(), forward, loss.SparseCategoricalCrossEntropyLogits,
		optimizer.Adam().LearningRate(1e-4).WeightDecay(0.01).Done(), nil, nil)
	ids, next := make([][]int32, batch), make([][][]int32, batch)
	for i := range ids {
		ids[i], next[i] = make([]int32, block), make([][]int32, block)
		for j := range ids[i] {
			at := i*block + j
			ids[i][j], next[i][j] = int32(at*7919%vocab), []int32{int32((at + 1) * 7919 % vocab)}
		}
	}
	return func() {
		metrics,
			err := trainer.TrainStep(train.Batch{Inputs: []*tensors.Tensor{tensors.FromValue(ids)},
			Labels: []*tensors.Tensor{tensors.FromValue(next)}})
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range metrics {
			m.FinalizeAll()
		}
	}
}

// timed is the median time of one run, of as many as fit in a turn.
func timed(run func(), turn float64) float64 {
	var times []float64
	for start := time.Now(); len(times) == 0 || time.Since(start).Seconds() < turn; {
		t := time.Now()
		run()
		times = append(times, time.Since(t).Seconds())
	}
	slices.Sort(times)
	return (times[(len(times)-1)/2] + times[len(times)/2]) / 2
}
