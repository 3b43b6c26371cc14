// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// TestResumeUnderOtherKernels: the checkpoint knows the variant of the kernels, and a run that goes on with another
// says so.
func TestResumeUnderOtherKernels(t *testing.T) {
	disk := vfs.NewMem()
	tr, _ := recipe{}.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	for _, v := range kernels.Available() {
		var log messages
		r := recipe{opts: func() []trainer.Option { return []trainer.Option{trainer.WithLogger(log.logger())} }}
		restore, err := kernels.Force(v)
		require.NoError(t, err)
		active := kernels.Active()
		tr, _ := r.trainer(t, disk, resumeFrom(1))
		_, err = tr.Train()
		restore()
		require.NoError(t, err)
		told := strings.Count(log.String(), "resuming on other devices or versions")
		if active == kernels.Active() {
			require.Zero(t, told, log.String())
		} else {
			require.Equal(t, 1, told, log.String())
			require.Contains(t, log.String(), active.String()+" kernels)")
		}
	}
}
