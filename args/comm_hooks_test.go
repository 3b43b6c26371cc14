// SPDX-License-Identifier: Apache-2.0

package args_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// Ranks that step on their own exchange no gradients, and have the whole model.
func TestLocalSGDArguments(t *testing.T) {
	for _, k := range []struct {
		set  func(a *args.TrainingArguments)
		want string
	}{
		{func(a *args.TrainingArguments) { a.LocalSGDSteps, a.StartLocalSGDIter = 4, 100 }, ""},
		{func(a *args.TrainingArguments) { a.LocalSGDSteps = -1 }, "local_sgd_steps is -1"},
		{func(a *args.TrainingArguments) { a.StartLocalSGDIter = 5 }, "start_local_sgd_iter is 5"},
		{func(a *args.TrainingArguments) { a.LocalSGDSteps, a.DDPCommHook = 4, args.CommHookTopK },
			`ddp_comm_hook is "top_k"`},
		{func(a *args.TrainingArguments) { a.LocalSGDSteps, a.ZeroStage = 4, 1 }, "local_sgd_steps is 4"},
		{func(a *args.TrainingArguments) { a.FSDP, a.DDPCommHook = []string{"full_shard"}, args.CommHookInt8 },
			`ddp_comm_hook is "int8"`},
	} {
		a := args.Default("out")
		k.set(a)
		if err := a.Validate(); k.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, k.want)
		}
	}
}
