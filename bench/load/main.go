// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Load measures how long it takes until a saved model has computed: loading its folder and the first forward pass, of
// 16 tokens, in wall-clock and processor time, and the resident memory after it. --write makes the folder, a Llama of
// 252M random parameters in float32, 1 GB. Files are in the system's cache if they were read before. peer.py measures
// the same with transformers; run the two alternately.
//
// Usage: load FOLDER [--mapped] [--threads 2] [--write]
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func main() {
	mapped := pflag.Bool("mapped", false, "leave the parameters in the file (models.Mapped)")
	threads := pflag.Int("threads", 2, "workers")
	made := pflag.Bool("write", false, "make the folder")
	pflag.Parse()
	err := kernels.Init()
	switch {
	case err != nil:
	case pflag.NArg() != 1:
		err = errors.New("want a folder")
	case *made:
		err = write(pflag.Arg(0))
	default:
		err = load(pflag.Arg(0), *threads, *mapped)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write makes the model.
func write(dir string) error {
	cfg, err := transformer.DefaultConfig("llama")
	if err != nil {
		return err
	}
	cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = 1024, 4096, 12
	cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim = 16, 16, 64
	cfg.VocabSize, cfg.MaxPositions, cfg.TieWordEmbeddings = 49152, 512, true
	m, err := transformer.New(nn.NewInit(tensor.CPU(), 1), cfg)
	if err != nil {
		return err
	}
	return models.SavePretrained(dir, m)
}

// load measures.
func load(dir string, threads int, mapped bool) error {
	dev := tensor.NewCPU(threads)
	defer dev.Close()
	var opts []models.LoadOption
	if mapped {
		opts = append(opts, models.Mapped())
	}
	start, used := time.Now(), processorTime()
	m, err := models.LoadPretrained(dev, dir, opts...)
	if err != nil {
		return err
	}
	loaded, usedLoaded := time.Since(start), processorTime()-used
	net, ok := m.(models.Generator)
	if !ok {
		return fmt.Errorf("%s: %T generates no text", dir, m)
	}
	c := nn.NewCtx(tensor.NewCtx(dev), nn.Walk(m), false)
	ids := make([]int, 16)
	for i := range ids {
		ids[i] = i
	}
	_, err = generation.Generate(context.Background(), c, net, ids, generation.Options{MaxNewTokens: 1})
	if err != nil {
		return err
	}
	fmt.Printf("load %.3f s (processor %.2f), with a pass %.3f s (processor %.2f), resident:%s\n", loaded.Seconds(),
		usedLoaded.Seconds(), time.Since(start).Seconds(), (processorTime() - used).Seconds(), resident())
	return nil
}

// processorTime is what the process has used.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// resident is the process's memory as Linux has it: its peak, and what of it is now of its own and of files.
func resident() string {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return " unknown"
	}
	var s strings.Builder
	for line := range strings.Lines(string(text)) {
		if name, size, ok := strings.Cut(line, ":"); ok && (name == "VmHWM" || strings.HasPrefix(name, "Rss")) {
			fmt.Fprintf(&s, " %s %s", name, strings.TrimSpace(size))
		}
	}
	return s.String()
}
