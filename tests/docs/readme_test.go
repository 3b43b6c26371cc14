// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeCounts: the README counts what is there. (bench/report checks what was measured.)
func TestReadmeCounts(t *testing.T) {
	readme := strings.Join(strings.Fields(read(t, "README.md")), " ")

	counts := regexp.MustCompile(`Of the (\d+) arguments, (\d+) are built`).FindStringSubmatch(
		strings.Join(strings.Fields(read(t, "docs/arguments.md")), " "))
	require.NotNil(t, counts)
	require.Contains(t, readme, fmt.Sprintf("all %s arguments of transformers 5.24 are known from flags, environment, "+
		"JSON and YAML: %s work under their own names", counts[1], counts[2]))

	runs := len(golden(t, "events.json").Runs) + len(golden(t, "differential.json.gz").Cases) +
		len(golden(t, "differential_ranks.json.gz").Cases) +
		len(golden(t, "differential_language.json.gz").Cases)
	require.Equal(t, 2, strings.Count(readme, fmt.Sprintf("compared with %d runs of transformers", runs)), runs)
}

// golden reads the runs of transformers that the trainer is compared with.
func golden(t *testing.T, name string) (out struct{ Runs, Cases []json.RawMessage }) {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "trainer/testdata", name))
	require.NoError(t, err)
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		r, err = gzip.NewReader(f)
		require.NoError(t, err)
	}
	require.NoError(t, json.NewDecoder(r).Decode(&out))
	return out
}
