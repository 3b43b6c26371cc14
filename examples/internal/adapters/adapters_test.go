// SPDX-License-Identifier: Apache-2.0

package adapters

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/hub/hubtest"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/program"
)

// An adapter, of the Hub or a folder, brings the model that it was trained on, at its commit.
func TestFind(t *testing.T) {
	s := hubtest.New(t)
	commit := s.Add("models/org/base", map[string]string{"config.json": "{}", "model.safetensors": "x"})
	config := `{"peft_type": "LORA", "base_model_name_or_path": "org/base", "revision": "` + commit + `"}`
	s.Add("models/org/adapter", map[string]string{models.AdapterConfigFile: config, models.AdapterFile: "x"})
	local := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(local, models.AdapterConfigFile), []byte(config), 0o600))
	hubtest.Environment(t, s.URL)
	const byDefault = "out/finetune"
	for _, c := range []struct{ model, adapter, wantAdapter string }{
		{byDefault, "org/adapter", "org/adapter"}, {"org/adapter", "", "org/adapter"}, {byDefault, local, ""},
		{"org/base", "", ""}, {"org/base", "org/adapter", "org/adapter"},
	} {
		var out bytes.Buffer
		model, adapter := c.model, c.adapter
		err := Find(t.Context(), &program.Process{Stdout: &out, Stderr: &out}, downloads.Defaults(), &model, &adapter,
			byDefault)
		require.NoError(t, err)
		name, at, ok := hub.NameOf(model)
		require.True(t, ok, model)
		require.Equal(t, []string{"org/base", commit}, []string{name, at})
		if c.wantAdapter != "" {
			name, _, _ = hub.NameOf(adapter)
			require.Equal(t, c.wantAdapter, name)
		}
		require.Contains(t, out.String(), "org/base, commit "+commit[:12])
	}
}
