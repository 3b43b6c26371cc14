// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
)

// A run that does not begin, since a setting or a folder is wrong, leaves no flight records: the error says all. One
// that fails in a step does.
func TestErrorsBeforeTheFirstStepLeaveNoFlightRecord(t *testing.T) {
	for want, c := range map[string]struct {
		set     func(a *args.TrainingArguments)
		records bool
	}{
		"no checkpoint: ": {func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" }, false},
		"no module of class LlamaDecoderLayer": {func(a *args.TrainingArguments) {
			a.FSDPTransformerLayerClsToWrap = []string{"LlamaDecoderLayer"}
		}, false},
		"at step_end: no luck": {func(*args.TrainingArguments) {}, true},
	} {
		dir, a := t.TempDir(), shardedArgs()
		c.set(a)
		err := trainAll(t, a, local.New(2, comm.Options{Log: quiet, FlightDir: dir}), on(callbacks.StepEnd,
			func(*callbacks.Event) error { return errors.New("no luck") }))
		require.ErrorContains(t, err, want)
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Equal(t, c.records, len(files) > 0, want)
	}
}
