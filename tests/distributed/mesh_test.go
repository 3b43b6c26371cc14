// SPDX-License-Identifier: Apache-2.0

//go:build unix

package distributed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAPipelineShrinksAndGrows requires the bits of one process from a run that continues on fewer and on more ranks:
// what they are more or fewer lies along dp. Checkpoints take both forms.
func TestAPipelineShrinksAndGrows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	succeed(t, plain(tiny(whole)))
	for _, backend := range backends() {
		from, meshes := "", []string{}
		for i, leg := range []struct {
			ranks       int
			form, saved string
		}{{4, "sharded_state_dict", "checkpoint-8"}, {2, "sharded_state_dict", "checkpoint-16"},
			{8, "full_state_dict", "checkpoint-24"}} {
			out := filepath.Join(dir, backend, fmt.Sprint(i))
			flags := []string{"--ddp_backend", backend, "--pp_size", "2", "--fsdp_state_dict_type", leg.form,
				"--log_level", "info"}
			if from != "" {
				flags = append(flags, "--resume_from_checkpoint", from)
			}
			p := succeed(t, launched(leg.ranks, tiny(out, flags...)))
			from = filepath.Join(out, leg.saved)
			if strings.Contains(p.stderr.String(), "resuming on another mesh") {
				meshes = append(meshes, fmt.Sprint(leg.ranks))
			}
			_, err := os.Stat(filepath.Join(from, "pieces.json"))
			require.Equal(t, leg.form == "sharded_state_dict", err == nil)
			require.True(t, bytes.Equal(read(t, whole, "model.safetensors"), read(t, out, "model.safetensors")), out)
		}
		requireSameWeights(t, whole, filepath.Dir(from), 24)
		require.Equal(t, []string{"2", "8"}, meshes, "the log says where the mesh is another one")
	}
}
