// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// repository is a folder with the small module, committed on main.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		lacking.Skip(t, lacking.Tools, "git", "no git")
	}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("CI_ALL", "")
	r := repository{t, t.TempDir()}
	for name, f := range small {
		r.write(name, string(f.Data))
	}
	r.git("init", "--quiet", "--initial-branch", "main")
	r.commit()
	return r
}

func (r repository) write(name, text string) {
	r.t.Helper()
	name = filepath.Join(r.dir, filepath.FromSlash(name))
	require.NoError(r.t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(r.t, os.WriteFile(name, []byte(text), 0o644))
}

func (r repository) git(argv ...string) {
	r.t.Helper()
	c := exec.Command("git", argv...)
	c.Dir = r.dir
	out, err := c.CombinedOutput()
	require.NoError(r.t, err, "%s", out)
}

func (r repository) commit() {
	r.t.Helper()
	r.git("add", "--all")
	r.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "a")
}

// requireTouched runs the command and requires packages, and words in what it says of them.
func (r repository) requireTouched(want, said string) {
	r.t.Helper()
	var out, log strings.Builder
	require.NoError(r.t, run(r.dir, &out, &log))
	require.Equal(r.t, want, strings.ReplaceAll(strings.Join(strings.Fields(out.String()), " "), "m/", ""))
	require.Contains(r.t, log.String(), said)
}

const everything = "app base bench/base help lib other tests/docs tests/e2e tests/env tests/gold tests/up " +
	"tests/whole tool"

func TestAllIsTestedOnMain(t *testing.T) {
	r := newRepository(t)
	r.requireTouched(everything, "HEAD is a commit of main")
	r.write("README.md", "new")
	r.requireTouched(everything, "HEAD is a commit of main")
	r.git("checkout", "--quiet", "-b", "branch")
	r.requireTouched(everything, "HEAD is a commit of main")
	r.commit()
	r.requireTouched("tests/docs", "1 of 13 packages: changes since ")
	t.Setenv("CI_ALL", "1")
	r.requireTouched(everything, "CI_ALL is set")
	t.Setenv("CI_ALL", "")
	r.git("checkout", "--quiet", "main")
	r.git("merge", "--quiet", "branch")
	r.requireTouched(everything, "HEAD is a commit of main")
}

func TestAllIsTestedWithoutAMergeBase(t *testing.T) {
	r := newRepository(t)
	r.git("checkout", "--quiet", "--orphan", "branch")
	r.write("README.md", "new")
	r.commit()
	r.requireTouched(everything, "no commit in common with main")
	r.git("branch", "--quiet", "-D", "main")
	r.requireTouched(everything, "no commit in common with main")
	require.NoError(t, os.RemoveAll(filepath.Join(r.dir, ".git")))
	r.requireTouched(everything, "git")
}

// Committed, changed, new, deleted and renamed files count; what landed on main meanwhile does not.
func TestWhatAChangeIs(t *testing.T) {
	r := newRepository(t)
	r.git("checkout", "--quiet", "-b", "branch")
	r.write("README.md", "new")
	r.commit()
	r.git("checkout", "--quiet", "main")
	r.write("base/base.go", "package base\n\n// landed\n")
	r.commit()
	r.git("checkout", "--quiet", "branch")
	r.requireTouched("tests/docs", "")
	r.write("lib/lib_test.go", "package lib\n") // not committed
	r.requireTouched("lib tests/docs tests/up tests/whole", "")
	r.write("help/more.go", "package help\n") // not known to git
	r.requireTouched("help lib tests/docs tests/e2e tests/up tests/whole", "")
	r.git("checkout", "--quiet", "--", "lib/lib_test.go")
	require.NoError(t, os.Remove(filepath.Join(r.dir, "help", "more.go")))
	r.git("mv", "lib/testdata/golden.json", "tool/golden.json")
	r.requireTouched("app lib tests/docs tests/e2e tests/gold tests/up tests/whole tool", "")
	r.git("checkout", "--quiet", "--force", "HEAD")
	r.write("häßlich", "") // git quotes the name
	r.requireTouched(everything, "")
}

// A clone has main under its remote's name, and perhaps an older one under its own.
func TestMainOfTheRemoteCounts(t *testing.T) {
	r := newRepository(t)
	r.git("update-ref", "refs/remotes/origin/main", "HEAD")
	r.write("README.md", "new")
	r.commit() // on main, and not pushed
	r.requireTouched("tests/docs", "")
	r.git("update-ref", "refs/remotes/origin/main", "HEAD")
	r.requireTouched(everything, "HEAD is a commit of origin/main")
}
