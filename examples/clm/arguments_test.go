// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

func parsed(t *testing.T, argv ...string) (*settings, error) {
	t.Helper()
	s := newSettings()
	l := s.loader()
	l.Environ = func() []string { return nil }
	_, err := l.Parse(argv)
	return s, err
}

// The settings of the demonstration hold without a text or model of the user's, and no longer.
func TestDemonstrationSettings(t *testing.T) {
	standard := args.Default("")
	for _, c := range []struct {
		argv         []string
		maxSteps     int
		epochs       float64
		seconds      float64
		learningRate float64
		eval         args.Strategy
	}{
		{nil, 2000, 3, 55, 4e-3, args.StrategySteps},
		{[]string{"--num_train_epochs", "1"}, -1, 1, 0, 4e-3, args.StrategySteps},
		{[]string{"--max_steps", "5000"}, 5000, 3, 0, 4e-3, args.StrategySteps},
		{[]string{"--max_train_seconds", "20"}, 2000, 3, 20, 4e-3, args.StrategySteps},
		{[]string{"--learning_rate", "1e-4", "--resume_from_checkpoint", "last"}, 2000, 3, 55, 1e-4,
			args.StrategySteps},
		{[]string{"--train_file", "a.txt", "--num_train_epochs", "1"}, -1, 1, 0, standard.LearningRate,
			args.StrategyNo},
		{[]string{"--validation_file", "a.txt"}, -1, 3, 0, standard.LearningRate, args.StrategyNo},
		{[]string{"--model_name_or_path", "out/clm"}, -1, 3, 0, standard.LearningRate, args.StrategyNo},
	} {
		s, err := parsed(t, c.argv...)
		require.NoError(t, err)
		a := s.args
		require.Equal(t, c.maxSteps, a.MaxSteps, c.argv)
		require.Equal(t, c.epochs, a.NumTrainEpochs, c.argv)
		require.Equal(t, c.seconds, a.MaxTrainSeconds, c.argv)
		require.Equal(t, c.learningRate, a.LearningRate, c.argv)
		require.Equal(t, c.eval, a.EvalStrategy, c.argv)
	}
	s, err := parsed(t, "--train_file", "a.txt")
	require.NoError(t, err)
	own := *s.args
	own.OutputDir, own.ReportTo = standard.OutputDir, standard.ReportTo
	require.Equal(t, *standard, own, "with a text of the user's all others are HuggingFace's")
}

func listing(r *args.Resolved) string {
	var b strings.Builder
	list(&b, r)
	return b.String()
}

// What --log_level info shows of the settings: who set them, and what the demonstration chose.
func TestListing(t *testing.T) {
	s := newSettings()
	l := s.loader()
	l.Environ = func() []string { return []string{"LOCKSTEP_SEED=7"} }
	r, err := l.Parse([]string{"--max_steps", "5", "--prompt", "a\nb", "--weight_decay", "0.25"})
	require.NoError(t, err)
	got := listing(r)
	require.True(t, strings.HasPrefix(got, `settings:
  max_steps     5       flag --max_steps
  weight_decay  0.25    flag --weight_decay
  seed          7       env LOCKSTEP_SEED
  prompt        "a\nb"  flag --prompt
demonstration learning_rate 0.004, adam_beta2 0.98, lr_scheduler_type cosine,`), got)
	require.Contains(t, got, "vocab_size 4096")

	s = newSettings()
	l = s.loader()
	l.Environ = func() []string { return nil }
	r, err = l.Parse(nil)
	require.NoError(t, err)
	require.NotContains(t, listing(r), "prompt", "the samples show those of the demonstration")

	s = newSettings()
	l = s.loader()
	l.Environ = func() []string { return nil }
	name := strings.Repeat("long", 30)
	r, err = l.Parse([]string{"--train_file", name, "--seed", "7"})
	require.NoError(t, err)
	require.Equal(t, "settings:\n  seed        7  flag --seed\n  train_file  "+name+"  flag --train_file\n", listing(r))
}

// A setting that would do nothing is an error that says so.
func TestSettingsWithoutEffectAreRefused(t *testing.T) {
	for key, argv := range map[string][]string{
		"n_layer":                     {"--n_layer", "12", "--model_name_or_path", "out/clm"},
		"n_embd":                      {"--n_embd", "128", "--model_name_or_path", "out/clm"},
		"n_head":                      {"--n_head", "4", "--model_name_or_path", "out/clm"},
		"dropout":                     {"--dropout", "0.1", "--model_name_or_path", "out/clm"},
		"vocab_size":                  {"--vocab_size", "500", "--model_name_or_path", "out/clm"},
		"temperature":                 {"--temperature", "1", "--max_new_tokens", "0"},
		"prompt":                      {"--prompt", "a", "--max_new_tokens", "0"},
		"max_eval_bytes":              {"--max_eval_bytes", "500", "--train_file", "a.txt"},
		"validation_split_percentage": {"--validation_split_percentage", "10"},
		"text_column":                 {"--text_column", "body"},
	} {
		_, err := parsed(t, argv...)
		var faults *args.Error
		require.ErrorAs(t, err, &faults, key)
		require.Len(t, faults.Faults, 1)
		require.Equal(t, key, faults.Faults[0].Key)
		require.ErrorContains(t, err, "left out")
	}
	_, err := parsed(t, "--validation_split_percentage", "10", "--train_file", "a.txt", "--validation_file", "b.txt")
	require.ErrorContains(t, err, "validation_split_percentage")
	_, err = parsed(t, "--validation_split_percentage", "10", "--train_file", "a.txt", "--text_column", "body")
	require.NoError(t, err)
}

// In one line the settings are those that somebody set.
func TestBrief(t *testing.T) {
	s := newSettings()
	l := s.loader()
	l.Environ = func() []string { return []string{"LOCKSTEP_SEED=7"} }
	r, err := l.Parse([]string{"--max_steps", "5", "--weight_decay", "0.25"})
	require.NoError(t, err)
	got := brief(r)
	require.Len(t, got, 4)
	require.ElementsMatch(t, []string{"max_steps 5", "weight_decay 0.25", "seed 7"}, got[:3])
	require.Regexp(t, `^\d+ for the demonstration \(`, got[3])
	r, err = newSettings().loader().Parse([]string{"--train_file", "a.txt"})
	require.NoError(t, err)
	require.Equal(t, []string{"train_file a.txt"}, brief(r))
}
