// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"flag"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata/operations.txt")

// random is the part of a temporary file's name that nobody can guess.
var random = regexp.MustCompile(`(\.tmp-file-[^ ]+)-[A-Z2-7]{26}\b`)

// The exact sequence of operations that change the disk. Its order is what makes saves
// safe: a change of the golden file is a change of that promise and needs an argument.
func TestOperations(t *testing.T) {
	const golden = "testdata/operations.txt"
	var log strings.Builder
	m := vfs.NewMem()
	created := map[string]bool{}
	s := quiet(errorfs.Wrap(m, func(op errorfs.Op) error {
		if op.Kind == errorfs.Create {
			created[op.Path] = true
		}
		if op.Kind.Changes() && (op.Kind != errorfs.Close || created[op.Path]) {
			log.WriteString(random.ReplaceAllString(op.String(), "$1-*") + "\n")
		}
		return nil
	}), "out")
	section := func(title string) { log.WriteString("\n# " + title + "\n") }

	log.WriteString("# the first save\n")
	save(t, s, state{5, "x"})
	section("the next")
	save(t, s, state{10, "x"})
	section("the same step again")
	save(t, s, state{5, "y"})
	section("rotation to one")
	_, err := s.Rotate(1, run)
	require.NoError(t, err)
	section("a save that fails")
	_,
		err = s.Save(ctx, 15,
		checkpoint.Content{Parts: []checkpoint.Part{{Name: "a", Write: func(io.Writer) error {
			return os.ErrInvalid
		}}}})
	require.ErrorIs(t, err, os.ErrInvalid)
	section("a file beside the checkpoints")
	require.NoError(t, s.WriteFiles(ctx, []checkpoint.Part{checkpoint.BytesPart("config.json", []byte("{}"))}))
	section("loading")
	require.Equal(t, state{5, "y"}, latest(t, s))

	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(log.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), log.String())
}
