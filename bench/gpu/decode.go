// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// decode measures how fast a model of --model_config generates: a prompt of --block tokens, and then one token after
// another. The weights are random.
func decode(s *settings, _ []string) error {
	cfg, text, err := s.modelConfig()
	if err != nil {
		return err
	}
	d, err := s.open()
	if err != nil {
		return err
	}
	defer d.Close()
	m, err := transformer.New(nn.NewInit(d, 42).As(s.precision()), cfg)
	if err != nil {
		return err
	}
	if s.save != "" {
		if err := os.MkdirAll(s.save, 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.save, "config.json"), text, 0o666); err != nil {
			return err
		}
	}
	prompt := make([]int, s.block)
	for i := range prompt {
		prompt[i] = 1000 + i%1000*7
	}
	const tokens = 128
	var prefill, each []float64
	for range s.steps {
		last, times := time.Now(), []float64{}
		opt := generation.Options{MaxNewTokens: tokens, OnToken: func(int) {
			now := time.Now()
			times = append(times, now.Sub(last).Seconds())
			last = now
		}}
		c := nn.NewCtx(tensor.NewCtx(d), nn.Walk(m), false)
		if _, err := generation.Generate(context.Background(), c, m, prompt, opt); err != nil {
			return err
		}
		prefill, each = append(prefill, times[0]), append(each, stats.Median(times[1:]))
	}
	result(s.row+"_prefill", float64(s.block)/stats.Median(prefill), "tokens/s")
	result(s.row, 1/stats.Median(each), "tokens/s")
	return nil
}
