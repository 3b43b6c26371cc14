// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// run_name is the first part of the folder's name, by which TensorBoard lists runs, and no part of a path.
func TestRunNameIsInTheFolder(t *testing.T) {
	t.Setenv(LoggingDirVariable, "")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.Equal(t, filepath.Join("out", "runs", "Jan02_03-04-05_"+hostName()), logDir("out", "", at))
	require.Equal(t, filepath.Join("out", "runs", "lr_1e-3_.._é_Jan02_03-04-05_"+hostName()),
		logDir("out", "lr 1e-3/../é", at))
}
