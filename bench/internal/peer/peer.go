// SPDX-License-Identifier: Apache-2.0

// Package peer runs the process that a benchmark is compared with: it prints "ready", and then answers each line with
// the seconds that the work took.
package peer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Peer is the other side's process.
type Peer struct {
	cmd   *exec.Cmd
	asks  io.WriteCloser
	lines *bufio.Scanner
}

// Start starts the process, and waits until it is ready. out gets what it says of itself.
func Start(cmd *exec.Cmd, out io.Writer) (*Peer, error) {
	p := &Peer{cmd: cmd}
	cmd.Stderr = os.Stderr
	var err error
	if p.asks, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.lines = bufio.NewScanner(answers)
	for p.lines.Scan() {
		if text, ok := strings.CutPrefix(p.lines.Text(), "ready "); ok {
			fmt.Fprintf(out, "peer: %s\n", text)
			return p, nil
		}
	}
	return nil, fmt.Errorf("%s has not started: %w", cmd, errors.Join(p.lines.Err(), cmd.Wait()))
}

// Ask is how many seconds the peer takes for the work that the words describe.
func (p *Peer) Ask(words ...any) (float64, error) {
	if _, err := fmt.Fprintln(p.asks, words...); err != nil {
		return 0, err
	}
	if !p.lines.Scan() {
		return 0, fmt.Errorf("the peer has ended: %w", errors.Join(p.lines.Err(), p.cmd.Wait()))
	}
	return strconv.ParseFloat(p.lines.Text(), 64)
}

// Stop ends the process, if there is one.
func (p *Peer) Stop() {
	if p != nil {
		_ = p.asks.Close()
		_ = p.cmd.Wait() // it ends with its input
	}
}
