// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

func TestReporters(t *testing.T) {
	callbacks.RegisterReporter("paper", func(*args.TrainingArguments) (callbacks.Callback, error) {
		return &tracer{}, nil
	})
	callbacks.RegisterReporter("broken", func(*args.TrainingArguments) (callbacks.Callback, error) {
		return nil, errors.New("no ink")
	})
	require.Equal(t, []string{"broken", "paper"}, callbacks.ReporterNames())
	for _, name := range []string{"paper", "none", "all", ""} {
		require.Panics(t, func() {
			callbacks.RegisterReporter(name, func(*args.TrainingArguments) (callbacks.Callback, error) {
				return nil, nil
			})
		})
	}
	require.Panics(t, func() { callbacks.RegisterReporter("nil", nil) })

	a := args.Default("out")
	got, err := callbacks.NewReporters(a)
	require.NoError(t, err)
	require.Empty(t, got)
	a.ReportTo = []string{"paper"}
	got, err = callbacks.NewReporters(a)
	require.NoError(t, err)
	require.Len(t, got, 1)
	a.ReportTo = []string{"papr"}
	_, err = callbacks.NewReporters(a)
	require.ErrorContains(t, err, "broken, paper")
	a.ReportTo = []string{"all"}
	_, err = callbacks.NewReporters(a)
	require.EqualError(t, err, "callbacks: reporter broken: no ink")
}
