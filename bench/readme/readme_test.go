// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/picture"
)

func text(lines [][]span) (out []string) {
	for _, line := range lines {
		var b strings.Builder
		for _, s := range line {
			b.WriteString(s.text)
		}
		out = append(out, b.String())
	}
	return out
}

// TestScreen: a transcript becomes what a person sees at the end of it.
func TestScreen(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"lines", "one\r\ntwo\r\n\r\n", []string{"one", "two"}},
		{"a bar that is drawn again", " 10% |#   |\r 20% |##  |\r\x1b[Kdone\r\n", []string{"done"}},
		{"a shorter text over a longer one", "abcdef\rxy\r\n", []string{"xycdef"}},
		{"erased whole", "abcdef\x1b[2K\rxy", []string{"xy"}},
		{"a wrapped line", strings.Repeat("a", 20) + "b", []string{strings.Repeat("a", 20), "b"}},
		{"up and over", "one\r\ntwo\x1b[A\rONE\x1b[B\rTWO", []string{"ONE", "TWO"}},
		{"erased below", "one\r\ntwo\x1b[1A\r\x1b[Jnew", []string{"new"}},
		{"tabs, backspaces, titles", "\x1b]0;title\aa\tb\bc", []string{"a       c"}},
		{"letters of other scripts", "héllo – 世", []string{"héllo – 世"}},
		{"script's own lines", "Script started on 2026-01-01 [COLUMNS=\"80\"]\nhi\r\n" +
			"\nScript done on 2026-01-01 [COMMAND_EXIT_CODE=\"0\"]\n", []string{"hi"}},
	} {
		s := newScreen(20)
		require.True(t, s.play(unwrapScript(c.in), ""), c.name)
		require.Equal(t, c.want, text(s.lines()), c.name)
	}
}

// TestScreenStyles: colours and weights are kept, and plain text after them is plain.
func TestScreenStyles(t *testing.T) {
	s := newScreen(80)
	s.play("\x1b[1;32mok\x1b[0m \x1b[2mdim\x1b[22m \x1b[91mred\x1b[39m end", "")
	require.Equal(t, [][]span{{
		{0, "ok", style{colour: 3, bold: true}}, {2, " ", style{}}, {3, "dim", style{dim: true}}, {6, " ", style{}},
		{7, "red", style{colour: 2}}, {10, " end", style{}},
	}}, s.lines())
}

// TestScreenUntil: the screen can stop at the moment when a text is there.
func TestScreenUntil(t *testing.T) {
	s := newScreen(80)
	require.True(t, s.play("start\r\n 10%\r 50%\r 90%\rend\r\n", "50%"))
	require.Equal(t, []string{"start", " 50%"}, text(s.lines()))
	require.False(t, newScreen(80).play("start\r\n", "50%"))
}

func TestExcerpt(t *testing.T) {
	lines := [][]span{{{0, "1", style{}}}, {{0, "2", style{}}}, {{0, "3", style{}}}, {{0, "4", style{}}}}
	kept, cut := excerpt(lines, 1, 2)
	require.Equal(t, []string{"1", "3", "4"}, text(kept))
	require.Equal(t, 1, cut)
	kept, cut = excerpt(lines, 3, 0)
	require.Equal(t, []string{"1", "2", "3"}, text(kept))
	require.Equal(t, 3, cut)
	kept, cut = excerpt(lines, 2, 2)
	require.Len(t, kept, 4)
	require.Zero(t, cut)
}

func TestHistory(t *testing.T) {
	h, err := parseHistory([]byte(`{"log_history": [{"step": 1, "loss": 3.5}, {"step": 2, "loss": 2.5},
		{"step": 2, "eval_loss": 2.75},
		{"step": 2, "train_loss": 3}, {"step": 2, "eval_loss": 2.75}]}`))
	require.NoError(t, err)
	require.Equal(t, history{train: []point{{1, 3.5}, {2, 2.5}}, eval: []point{{2, 2.75}}}, h)
	_, err = parseHistory([]byte(`{"log_history": [{"step": 1, "loss": 3.5}]}`))
	require.ErrorContains(t, err, "fewer than two records with a loss")
}

// texts returns what the text elements of a well-formed SVG say.
func texts(t *testing.T, svg string) (out []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	depth, name := 0, ""
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			if depth == 0 {
				require.Equal(t, "svg", token.Name.Local)
			}
			depth, name = depth+1, token.Name.Local
		case xml.EndElement:
			depth, name = depth-1, ""
		case xml.CharData:
			if name == "text" {
				out = append(out, string(token))
			}
		}
	}
	require.Zero(t, depth)
	return out
}

// TestPictures: the pictures of a small run are well-formed and show its text and its losses.
func TestPictures(t *testing.T) {
	dir := t.TempDir()
	o := options{
		transcript: filepath.Join(dir, "run.txt"), state: filepath.Join(dir, "state.json"), name: "x",
		command: "run <it>", title: "Loss & more", note: "of it", unit: "loss", columns: 60, head: 1, tail: 2,
	}
	const run = "first\r\nleft out\r\n 50%\r\x1b[Kstep 2  loss 2.5\r\nif a < b && c {\r\n"
	require.NoError(t, os.WriteFile(o.transcript, []byte(run), 0o600))
	const log = `{"log_history": [{"step": 1, "loss": 3.5}, {"step": 2, "loss": 2.5}, {"step": 2, "eval_loss": 2.75}]}`
	require.NoError(t, os.WriteFile(o.state, []byte(log), 0o600))
	pictures, err := o.draw()
	require.NoError(t, err)
	require.Len(t, pictures, 2)
	for i := range picture.Themes {
		theme := &picture.Themes[i]
		require.Equal(t, []string{"run <it>", "$", "run <it>", "first", "⋮", "step 2  loss 2.5", "if a < b && c {"},
			texts(t, pictures["x-run"].SVG(theme)))
		require.Subset(t, texts(t, pictures["x-loss"].SVG(theme)),
			[]string{"Loss & more", "of it", "training", "evaluation", "step", "loss", "2.50", "2.75", "2.4", "3.6"})
	}

	alone := o
	alone.state = ""
	pictures, err = alone.draw()
	require.NoError(t, err)
	require.Len(t, pictures, 1)

	o.head, o.tail = 2, 0
	pictures, err = o.draw()
	require.NoError(t, err)
	require.Equal(t, []string{"run <it>", "$", "run <it>", "first", "left out", "⋮"},
		texts(t, pictures["x-run"].SVG(&picture.Themes[0])))

	o.compare = []string{"one=" + o.state, "two=" + o.state}
	pictures, err = o.drawComparison()
	require.NoError(t, err)
	require.Subset(t, texts(t, pictures["x"].SVG(&picture.Themes[0])), []string{"one", "two"})

	o.until = "not there"
	_, err = o.draw()
	require.ErrorContains(t, err, `the text "not there" of --until does not appear`)
}

// TestPrecisionDocument: the losses of the two recorded runs differ as docs/precision.md says.
func TestPrecisionDocument(t *testing.T) {
	whole, err := readHistory("testdata/precision-float32.json")
	require.NoError(t, err)
	half, err := readHistory("testdata/precision-bf16.json")
	require.NoError(t, err)
	require.Len(t, half.train, len(whole.train))
	low, high := 0.0, 0.0
	for i, at := range whole.train {
		require.Equal(t, at.step, half.train[i].step)
		low, high = min(low, half.train[i].loss-at.loss), max(high, half.train[i].loss-at.loss)
	}
	require.Less(t, low, 0.0)
	require.Greater(t, high, 0.0, "to either side")
	document, err := os.ReadFile("../../docs/precision.md")
	require.NoError(t, err)
	require.Contains(t, string(document), fmt.Sprintf("differ by at most %.3f, to either side", max(-low, high)))
}
