// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/callbacks"
)

func TestMetricName(t *testing.T) {
	for key, want := range map[string]string{"eval_loss": "eval/loss", "test_a_b": "test/a_b", "loss": "train/loss",
		"train_runtime": "train/train_runtime", "evals": "train/evals",
		"memory_rss_peak": "memory/rss_peak_mib", "train_mem_cpu_alloc_delta": "memory/train_cpu_alloc_delta_mib"} {
		require.Equal(t, want, callbacks.MetricName(key))
	}
}

// Numbers alone are metrics; the step is where they are drawn.
func TestMetrics(t *testing.T) {
	r := callbacks.Record{"step": 3, "loss": 0.5, "eval_loss": math.Inf(1), "note": "text", "memory_rss": 3 << 20}
	require.Equal(t, map[string]float64{"train/loss": 0.5, "eval/loss": math.Inf(1), "memory/rss_mib": 3},
		maps.Collect(r.Metrics()))
	for name := range r.Metrics() {
		require.Equal(t, "train/loss", name)
		break
	}
}
