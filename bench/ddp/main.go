// Ddp measures what data parallelism costs: training steps of a GPT-2 of any size, with one
// core for each rank, on one rank, on ranks that know nothing of each other, and on ranks that
// are goroutines and exchange their gradients. Rounds of the three take turns, and medians are
// compared. It can draw one step as SVG: forward and backward passes, and the exchange of each
// bucket, which lies under the backward pass.
//
//	go run ./bench/ddp --ranks 2 --svg step.svg
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/local"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// bench is what is measured.
type bench struct {
	model         gpt2.Config
	batch, block  int
	ranks         int
	steps, rounds int
	bucketMB      int
	hook          string
	svg           string
}

func main() {
	b := bench{model: gpt2.DefaultConfig()}
	pflag.IntVar(&b.model.NLayer, "n_layer", 4, "layers")
	pflag.IntVar(&b.model.NEmbd, "n_embd", 256, "width")
	pflag.IntVar(&b.model.NHead, "n_head", 4, "heads")
	pflag.IntVar(&b.model.VocabSize, "vocab_size", 4096, "tokens of the vocabulary")
	pflag.IntVar(&b.batch, "batch", 4, "samples per step and rank")
	pflag.IntVar(&b.block, "block", 128, "tokens per sample")
	pflag.IntVar(&b.ranks, "ranks", 2, "ranks")
	pflag.IntVar(&b.steps, "steps", 10, "timed steps of a round, after 2 others")
	pflag.IntVar(&b.rounds, "rounds", 3, "rounds")
	pflag.IntVar(&b.bucketMB, "ddp_bucket_cap_mb", 4, "size of a bucket in MiB")
	pflag.StringVar(&b.hook, "ddp_comm_hook", "no", "no, or bf16")
	pflag.StringVar(&b.svg, "svg", "", "draw a step here")
	pflag.Parse()
	if err := b.run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run measures and prints.
func (b *bench) run(w io.Writer) error {
	b.model.NPositions = b.block
	b.model.ResidPdrop, b.model.EmbdPdrop, b.model.AttnPdrop = 0, 0, 0
	var alone, apart, together []float64 // tokens per second of each round, over all ranks
	var median time.Duration
	var last []accelerate.Span
	for range b.rounds {
		one, err := b.round(1, false, nil)
		if err != nil {
			return err
		}
		many, err := b.round(b.ranks, false, nil)
		if err != nil {
			return err
		}
		var rec recorder
		ddp, err := b.round(b.ranks, true, &rec)
		if err != nil {
			return err
		}
		alone, apart, together = append(alone, b.throughput(one)), append(apart, b.throughput(many)), append(together, b.throughput(ddp))
		median, last = one[0], rec.last
	}
	x, y, z := middle(alone), middle(apart), middle(together)
	fmt.Fprintf(w, "a step on one rank takes %.0f ms\n", median.Seconds()*1e3)
	if median < 100*time.Millisecond {
		fmt.Fprintln(w, "that is below 100 ms: take a larger model or batch")
	}
	fmt.Fprintf(w, "%-34s %10.0f tokens/s\n", "one rank", x)
	fmt.Fprintf(w, "%-34s %10.0f tokens/s  %.2f × one rank\n", fmt.Sprintf("%d ranks that know nothing", b.ranks), y, y/x)
	fmt.Fprintf(w, "%-34s %10.0f tokens/s  %.2f × one rank  %.3f of ranks that know nothing\n", fmt.Sprintf("%d goroutine ranks", b.ranks), z, z/x, z/y)
	hidden, total := overlap(last)
	fmt.Fprintf(w, "%.0f %% of %.1f ms of bucket exchange lie under the backward pass\n", 100*hidden.Seconds()/max(total.Seconds(), 1e-9), total.Seconds()*1e3)
	if b.svg == "" {
		return nil
	}
	return os.WriteFile(b.svg, []byte(draw(last)), 0o644)
}

// throughput is the sum of the ranks' tokens per second, by their median steps.
func (b *bench) throughput(medians []time.Duration) (sum float64) {
	for _, d := range medians {
		sum += float64(b.batch*b.block) / d.Seconds()
	}
	return sum
}

// round runs steps on n ranks with a core each and returns each rank's median step.
func (b *bench) round(n int, connected bool, rec *recorder) ([]time.Duration, error) {
	medians, errs := make([]time.Duration, n), make([]error, n)
	groups := make([]*dist.Group, n)
	if connected {
		groups = local.New(n, dist.Options{Timeout: time.Minute})
	}
	var all sync.WaitGroup
	for rank, g := range groups {
		all.Go(func() { medians[rank], errs[rank] = b.rank(rank, g, rec) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return medians, nil
}

// rank runs one rank's steps; g is nil if it knows nothing of others.
func (b *bench) rank(rank int, g *dist.Group, rec *recorder) (median time.Duration, err error) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.DDPBucketCapMB, a.DDPCommHook = b.batch, b.bucketMB, args.CommHook(b.hook)
	opts := []accelerate.Option{accelerate.WithDevice(dev), accelerate.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))}
	if g != nil {
		opts = append(opts, accelerate.WithGroup(g), accelerate.WithTracer(rec.add))
	}
	acc, err := accelerate.New(a, opts...)
	if err != nil {
		return 0, err
	}
	err = accelerate.RunRanks(context.Background(), []*accelerate.Accelerator{acc}, func(acc *accelerate.Accelerator) error {
		median, err = b.train(acc, rank, rec)
		return err
	})
	return median, err
}

// train runs the steps.
func (b *bench) train(acc *accelerate.Accelerator, rank int, rec *recorder) (time.Duration, error) {
	ctx := context.Background()
	m, err := gpt2.New(nn.NewInit(acc.Device(), 1), b.model)
	if err != nil {
		return 0, err
	}
	group := &optim.Group{LR: 1e-4, WeightDecay: 0.01}
	for _, p := range nn.NamedParameters(m) {
		group.Params = append(group.Params, optim.Param{Name: p.Name, Tensor: p.Tensor})
	}
	if err := acc.Prepare(ctx, m, optim.NewAdamW(acc.Ctx(), []*optim.Group{group}, 0.9, 0.999, 1e-8), nil); err != nil {
		return 0, err
	}
	ids := make([]int32, b.batch*b.block)
	for i := range ids {
		ids[i] = int32((i + rank) * 7919 % m.Cfg.VocabSize)
	}
	t := tensor.FromSlice(acc.Ctx().NoGrad(), ids, b.batch, b.block)
	batch := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: t, data.Labels: t}, Count: int64(b.batch * (b.block - 1)), Size: b.batch}
	times := make([]time.Duration, 0, b.steps)
	for step := range 2 + b.steps {
		if rec != nil {
			rec.begin(rank)
		}
		start := time.Now()
		_, err := acc.Accumulate(ctx, []*data.Batch{batch}, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor { return m.Forward(c, b).Loss })
		if err != nil {
			return 0, err
		}
		acc.ClipGradNorm(1)
		acc.Step()
		acc.Ctx().Sync()
		if step >= 2 {
			times = append(times, time.Since(start))
		}
	}
	slices.Sort(times)
	return times[len(times)/2], acc.Barrier(ctx)
}

func middle(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}
