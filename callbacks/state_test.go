// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

func TestStateJSON(t *testing.T) {
	a := args.Default("out")
	a.LoggingSteps, a.SaveSteps = 10, 0.3
	s := callbacks.NewState(a, 25)
	s.GlobalStep, s.Epoch, s.NumTrainEpochs, s.TotalFLOPs = 4, 0.5, 3, 1e18
	s.LogHistory = append(s.LogHistory, callbacks.Record{"loss": 2.25, "grad_norm": math.NaN(), "step": 4})
	s.SetBest(1.5, true)
	text, err := s.JSON()
	require.NoError(t, err)
	require.Equal(t, `{
  "best_global_step": 4,
  "best_metric": 1.5,
  "best_model_checkpoint": null,
  "epoch": 0.5,
  "eval_steps": 500,
  "global_step": 4,
  "is_hyper_param_search": false,
  "is_local_process_zero": true,
  "is_world_process_zero": true,
  "log_history": [
    {
      "grad_norm": "NaN",
      "loss": 2.25,
      "step": 4
    }
  ],
  "logging_steps": 10,
  "max_steps": 25,
  "num_input_tokens_seen": 0,
  "num_train_epochs": 3,
  "save_steps": 8,
  "stateful_callbacks": {},
  "total_flos": 1000000000000000000,
  "train_batch_size": 8,
  "trial_name": null,
  "trial_params": null
}
`, string(text))
	back, err := callbacks.StateFromJSON(text)
	require.NoError(t, err)
	norm, ok := back.LogHistory[0].Number("grad_norm")
	require.True(t, ok && math.IsNaN(norm))
	again, err := back.JSON()
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
}

func TestStateErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                    "callbacks: reading the trainer's state: unexpected end of JSON input",
		`{"global_step": "a"}`: "callbacks: reading the trainer's state: json: cannot unmarshal string",
		`{"global_step": -4}`:  "callbacks: reading the trainer's state: global_step is -4: want 0 or more",
		`{"epoch": -1e300}`:    "epoch is -1e+300: want 0 or more",
		`{"total_flos": -1}`:   "total_flos is -1: want 0 or more",
		`{"global_step": 3, "best_global_step": 4, "best_metric": 1}`: "best_global_step is 4: want at most " +
			"global_step, 3",
		`{"best_model_checkpoint": "checkpoint-1"}`: "best_metric is null beside best_global_step or " +
			"best_model_checkpoint: want a number",
		`{"best_global_step": 0}`:     "best_metric is null beside",
		`{"log_history": [{}, null]}`: "log_history[1] is null: want a record",
	} {
		_, err := callbacks.StateFromJSON([]byte(text))
		require.ErrorContains(t, err, want)
	}
	s := &callbacks.State{StatefulCallbacks: map[string]any{"bad": func() {}}}
	_, err := s.JSON()
	require.ErrorContains(t, err, "callbacks: writing the trainer's state: the state of bad: json: unsupported type")
	s = &callbacks.State{LogHistory: []callbacks.Record{{"a": 1, "bad": make(chan int)}}}
	_, err = s.JSON()
	require.ErrorContains(t, err, "bad is a chan int, which JSON cannot hold")
}

func TestImproves(t *testing.T) {
	s := &callbacks.State{GlobalStep: 7}
	require.False(t, s.Improves(math.NaN(), false))
	require.False(t, s.Improves(math.Inf(1), true))
	require.True(t, s.Improves(3, false))
	s.SetBest(3, true)
	require.EqualValues(t, 7, *s.BestGlobalStep)
	require.False(t, s.Improves(3, false), "strictly better only")
	require.False(t, s.Improves(3, true))
	require.True(t, s.Improves(2.9, false))
	require.False(t, s.Improves(2.9, true))
	require.True(t, s.Improves(3.1, true))
}

func TestRecord(t *testing.T) {
	r := callbacks.Record{"learning_rate": 4.5e-05, "loss": 2.345678, "step": 500, "epoch": 1.25,
		"train_tokens_per_second": 12345.678, "note": "a\nb"}
	require.Equal(t, "step 500  epoch 1.25  loss 2.3457  learning_rate 4.50e-05  note a b  "+
		"train_tokens_per_second 12346", r.String())
	require.True(t, r.IsTrain())
	require.False(t, callbacks.Record{"eval_loss": 1.0}.IsTrain())
	require.Equal(t, "loss NaN  text (101 bytes)",
		callbacks.Record{"loss": math.NaN(), "text": string(make([]byte, 101))}.String())
	text, err := callbacks.Record{"a": math.Inf(1), "b": math.Inf(-1), "c": float32(0.5), "d": int64(3)}.MarshalJSON()
	require.NoError(t, err)
	require.Equal(t, `{"a":"Infinity","b":"-Infinity","c":0.5,"d":3}`, string(text))
	var back callbacks.Record
	require.NoError(t, back.UnmarshalJSON(text))
	require.Equal(t, callbacks.Record{"a": math.Inf(1), "b": math.Inf(-1), "c": 0.5, "d": 3.0}, back)
	require.Error(t, back.UnmarshalJSON([]byte(`[]`)))
}
