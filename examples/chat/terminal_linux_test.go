// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lockstep-ml/lockstep/internal/screen"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

// person is who sits at the terminal of a program.
type person struct {
	t     *testing.T
	keys  *os.File
	shown syncbuffer.Buffer
	ended chan error

	process *os.Process
	seen    int // bytes that await has passed
}

// sit starts the program on its own terminal.
func sit(t *testing.T, argv ...string) *person {
	tty, keys, err := screen.OpenTerminal(80, 24)
	require.NoError(t, err)
	p := &person{t: t, keys: keys, ended: make(chan error, 1)}
	cmd := exec.Command(os.Args[0], argv...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "TERM=xterm")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, tty.Close())
	go func() {
		_, _ = io.Copy(&p.shown, keys) // it fails at the end
	}()
	p.process = cmd.Process
	go func() { p.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = keys.Close()
	})
	return p
}

// await waits for a text behind those that it has waited for.
func (p *person) await(text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		at := strings.Index(p.shown.String()[p.seen:], text)
		if at >= 0 {
			p.seen += at + len(text)
		}
		return at >= 0
	}, time.Minute, time.Millisecond, "want %q in %q", text, &p.shown)
}

func (p *person) types(text string) {
	p.t.Helper()
	_, err := p.keys.WriteString(text)
	require.NoError(p.t, err)
}

func (p *person) end() error {
	p.t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(time.Minute):
		require.FailNow(p.t, "the program does not end", "%q", &p.shown)
		return nil
	}
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
)

// endless is a model that answers and answers: the token that ends a text comes late.
func endless(t *testing.T) string {
	dir := changed(t, "config.json", `"max_position_embeddings": 128`, `"max_position_embeddings": 1000000`)
	late := []byte(`{"min_new_tokens": 900000}`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"), late, 0o600))
	return dir
}

// Ctrl-C stops an answer and what it has said stays; at the prompt it gives up the line, and the second one ends.
func TestCtrlC(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "rows.jsonl")
	p := sit(t, "--model_name_or_path", endless(t), "--temperature", "1", "--max_new_tokens", "900000")
	p.await(">>> ")
	p.types("go\r")
	p.await("go\r\n")
	time.Sleep(10 * time.Millisecond) // for a part of the answer; without one the test holds too
	p.types(ctrlC)
	p.await("(stopped)")
	p.await(">>> ")
	p.types("a line that is not sent" + ctrlC)
	p.await("(" + farewell + ")")
	p.await(">>> ")
	p.types("/save " + saved + "\r")
	p.await("(added to ")
	require.FileExists(t, saved)
	p.await(">>> ") // before it Ctrl-C would be a signal
	p.types(ctrlC)
	p.await("(" + farewell + ")")
	p.await(">>> ")
	p.types(ctrlC)
	require.NoError(t, p.end())
}

// Pasted lines are one message, and Ctrl-D ends the program.
func TestPaste(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "rows.jsonl")
	p := sit(t, "--model_name_or_path", folder, "--max_new_tokens", "3")
	p.await(">>> ")
	p.types("\x1b[200~one\rtwo\r\x1b[201~three\r")
	p.await("three")
	p.await(">>> ")
	p.types("/save " + saved + "\r")
	p.await("(added to ")
	p.await(">>> ")
	p.types(ctrlD)
	require.NoError(t, p.end())
	text, err := os.ReadFile(saved)
	require.NoError(t, err)
	require.Contains(t, string(text), `"content":"one\ntwo\nthree"`)
}

// A signal ends the program, and leaves the terminal as it was.
func TestTerminated(t *testing.T) {
	p := sit(t, "--model_name_or_path", folder)
	echoes := func() bool {
		state, err := unix.IoctlGetTermios(int(p.keys.Fd()), unix.TCGETS)
		require.NoError(t, err)
		return state.Lflag&unix.ECHO != 0
	}
	p.await(">>> ")
	require.False(t, echoes())
	require.NoError(t, p.process.Signal(syscall.SIGTERM))
	require.Error(t, p.end())
	require.True(t, echoes())
}
