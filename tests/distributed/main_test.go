// SPDX-License-Identifier: Apache-2.0

//go:build unix

package distributed

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/imagestest"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tests/internal/clmtest"

	// What the programs are made of: without these the go command would take a test's old
	// result although a program has changed.
	_ "github.com/lockstep-ml/lockstep/accelerate/launch"
	_ "github.com/lockstep-ml/lockstep/data/tokenizers"
	_ "github.com/lockstep-ml/lockstep/integrations/jsonl"
	_ "github.com/lockstep-ml/lockstep/integrations/tensorboard"
	_ "github.com/lockstep-ml/lockstep/models/generation"
	_ "github.com/lockstep-ml/lockstep/models/gpt2"
	_ "github.com/lockstep-ml/lockstep/models/resnet"
	_ "github.com/lockstep-ml/lockstep/trainer"
)

const root = "../.."

// The programs and the texts, made once.
var clm, vision, lockstep, corpus, heldOut, pictures string

// role makes the test binary the program of that name, of roles.
const role = "DISTRIBUTED_TEST_ROLE"

var roles = map[string]program.Func{}

// atOnce is how many tests run at once unless -parallel says so: they wait more than they
// compute.
const atOnce = "6"

func TestMain(m *testing.M) {
	if f := roles[os.Getenv(role)]; f != nil {
		os.Exit(program.Run(f))
	}
	code := 1
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	var err error
	if !chosen {
		err = flag.Set("test.parallel", atOnce)
	}
	scratch, e := os.MkdirTemp("", "lockstep-distributed-*")
	err = errors.Join(err, e)
	if err == nil {
		if err = prepare(scratch); err == nil {
			code = m.Run()
		}
		err = errors.Join(err, os.RemoveAll(scratch))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = cmp.Or(code, 1)
	}
	os.Exit(code)
}

func prepare(scratch string) error {
	var err error
	if clm, err = clmtest.Build(root, "examples/clm", scratch); err != nil {
		return err
	}
	if vision, err = clmtest.Build(root, "examples/vision", scratch); err != nil {
		return err
	}
	if lockstep, err = clmtest.Build(root, "cmd/lockstep", scratch); err != nil {
		return err
	}
	corpus, heldOut = filepath.Join(scratch, "corpus"), filepath.Join(scratch, "heldout")
	pictures = filepath.Join(scratch, "pictures")
	return errors.Join(clmtest.WriteCorpus(corpus, 8, 1000), clmtest.WriteCorpus(heldOut, 2, 500),
		imagestest.WriteIDX(pictures, 101, 30))
}

// tiny are the flags of a run of milliseconds a step, on the texts of this package.
func tiny(out string, more ...string) []string { return clmtest.Tiny(corpus, heldOut, out, more...) }

// launched is the command line of lockstep launch for clm on n ranks. flags are the
// launcher's.
func launched(n int, argv []string, flags ...string) []string {
	line := append([]string{lockstep, "launch", "--nproc_per_node", fmt.Sprint(n)}, flags...)
	return append(append(line, "--", clm), argv...)
}

// plain is the command line of clm without a launcher.
func plain(argv []string) []string { return append([]string{clm}, argv...) }

// succeed runs a command line and requires no failure.
func succeed(t testing.TB, line []string, env ...string) *process {
	t.Helper()
	p := start(t, line, env...)
	p.wait()
	require.Equal(t, 0, p.code(), "%s", p.stderr)
	return p
}
