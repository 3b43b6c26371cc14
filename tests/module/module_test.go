// SPDX-License-Identifier: Apache-2.0

// Package module tests the ways in that the README prints: git clone, go get and a program in another module, go
// install. The repository is cloned from its folder, and the module comes from a module proxy in a folder, so that the
// tests need no network.
package module

import (
	"archive/zip"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

const (
	root    = "../.."
	module  = "github.com/lockstep-ml/lockstep"
	version = "v0.1.0" // that the proxy has
)

// commands are the lines of the README that contain what, without the comments behind them.
func commands(t *testing.T, what string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		command, code := strings.CutPrefix(line, "    ")
		if code && strings.Contains(command, what) {
			command, _, _ = strings.Cut(command, " #")
			list = append(list, strings.TrimSpace(command))
		}
	}
	require.NotEmpty(t, list, "the README has no command with %q", what)
	return list
}

// user is a user with an empty module cache.
type user struct {
	dir string
	env []string
}

// newUser returns a user for whom the environment is that of a shell, except that the module comes from proxy and the
// repository from this folder.
func newUser(t *testing.T, proxy string) *user {
	t.Helper()
	get := func(name string) string {
		out, err := exec.Command("go", "env", name).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	u := &user{dir: t.TempDir()}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains([]string{"CGO_ENABLED", "GOFLAGS", "GOPROXY", "GOMODCACHE", "GOBIN", "PWD"}, name) {
			u.env = append(u.env, v)
		}
	}
	cache := get("GOMODCACHE")
	u.env = append(u.env,
		"GOMODCACHE="+filepath.Join(u.dir, "modcache"),
		"GOBIN="+filepath.Join(u.dir, "bin"),
		"GOPROXY="+address(proxy)+","+address(filepath.Join(cache, "cache", "download"))+","+get("GOPROXY"),
		"GONOSUMDB="+module, // a version that nobody has published
		// Files that t.TempDir can delete; builds that the cache keeps.
		"GOFLAGS=-modcacherw -trimpath",
		"GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_0=url."+address(here)+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+module,
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
	)
	return u
}

// address is a folder as a file address.
func address(dir string) string {
	dir = filepath.ToSlash(dir)
	if !strings.HasPrefix(dir, "/") {
		dir = "/" + dir // C:/…
	}
	return "file://" + dir
}

// sh runs a command of a document in a folder of the user's, and returns what it prints.
func (u *user) sh(t *testing.T, in, command string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir, cmd.Env = filepath.Join(u.dir, in), u.env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", command, out)
	return string(out)
}

// proxy makes a module proxy of the working tree: https://go.dev/ref/mod#goproxy-protocol.
func proxy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, filepath.FromSlash(module), "@v")
	require.NoError(t, os.MkdirAll(at, 0o755))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"list": version + "\n", version + ".info": fmt.Sprintf(`{"Version":%q}`, version), version + ".mod": string(mod),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o600))
	}
	f, err := os.Create(filepath.Join(at, version+".zip"))
	require.NoError(t, err)
	w := zip.NewWriter(f)
	for _, name := range files(t) {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		require.NoError(t, err)
		file, err := w.Create(module + "@" + version + "/" + name)
		require.NoError(t, err)
		_, err = file.Write(text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	return dir
}

// files are those of the module in the working tree, sorted.
func files(t *testing.T) (list []string) {
	t.Helper()
	git := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	git.Dir = root
	out, err := git.Output()
	require.NoError(t, err)
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	others := map[string]bool{} // folders of other modules
	for _, name := range names {
		if dir, file := path.Split(name); file == "go.mod" && dir != "" {
			others[dir] = true
		}
	}
	for _, name := range names {
		inOther := false
		for dir := range others {
			inOther = inOther || strings.HasPrefix(name, dir)
		}
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(name))); err == nil && !inOther {
			list = append(list, name)
		}
	}
	require.Contains(t, list, "go.mod")
	return list
}

// wantGit skips a test on a machine without git, or in a copy of the files without their history.
func wantGit(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the commands are for a Unix shell")
	}
	git := exec.Command("git", "rev-parse", "HEAD")
	git.Dir = root
	if err := git.Run(); err != nil {
		lacking.Skip(t, lacking.Tools, "git", "no git, or no repository")
	}
}

// TestAnotherModule follows the README in an empty folder: go get, a program that uses the API (its own model is
// trained, saved and loaded), go install.
func TestAnotherModule(t *testing.T) {
	wantGit(t)
	u := newUser(t, proxy(t))
	u.sh(t, "", "go mod init example.com/outside && go mod edit -go 1.26.0")
	for _, command := range commands(t, "go get ") {
		u.sh(t, "", command)
	}
	text, err := os.ReadFile("testdata/outside/main.go")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(u.dir, "main.go"), text, 0o600))
	mod, err := os.ReadFile(filepath.Join(u.dir, "go.mod"))
	require.NoError(t, err)
	require.Contains(t, string(mod), module+" "+version)

	u.env = append(u.env, "CGO_ENABLED=0") // one build of the packages for all that follows
	out := u.sh(t, "", "go mod tidy && go run .")
	require.Equal(t, 3, strings.Count(out, "the same weights: true\n"), out)
	require.Contains(t, out, "[down.bias down.weight up.bias up.weight] [8 2]\nbfloat16 1.5\n")

	for _, command := range commands(t, "go install ") {
		u.sh(t, "", command)
	}
	require.Equal(t, fmt.Sprintf("lockstep %s, %s, %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH),
		u.sh(t, "", "bin/lockstep version"))
}

// TestClone follows the README from git clone to a program that is built; lockstep version prints the commit.
func TestClone(t *testing.T) {
	wantGit(t)
	u := newUser(t, t.TempDir())
	for _, command := range commands(t, "git clone ") {
		u.sh(t, "", command)
	}
	git := exec.Command("git", "rev-parse", "--short=12", "HEAD")
	git.Dir = root
	commit, err := git.Output()
	require.NoError(t, err)
	out := u.sh(t, "lockstep", "CGO_ENABLED=0 go build -o ../built ./cmd/lockstep && ../built version")
	require.Regexp(t, regexp.QuoteMeta(strings.TrimSpace(string(commit))), out)
}
