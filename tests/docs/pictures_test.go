// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const figures = "docs/figures"

// pictures are the pictures of the documents by file name, NAME-light.svg and NAME-dark.svg of each name.
func pictures(t *testing.T) map[string]string {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(root, figures))
	require.NoError(t, err)
	out := map[string]string{}
	for _, f := range files {
		switch filepath.Ext(f.Name()) {
		case ".svg":
			out[f.Name()] = read(t, filepath.Join(figures, f.Name()))
		case ".tsv": // what pictures are drawn from
		default:
			require.Fail(t, "docs/figures has a file that is no picture and no table", f.Name())
		}
	}
	require.Greater(t, len(out), 10)
	return out
}

var (
	drawnBy = regexp.MustCompile(`<desc>Drawn by: (go run -C bench \./\w+ .*)</desc>`)
	entity  = strings.NewReplacer("&#39;", "'", "&#34;", `"`, "&lt;", "<", "&gt;", ">", "&amp;", "&")
)

// words divides a command line as a shell does, with single quotes alone.
func words(command string) (out []string) {
	for _, m := range regexp.MustCompile(`(?:[^\s']+|'[^']*')+`).FindAllString(command, -1) {
		out = append(out, strings.ReplaceAll(m, "'", ""))
	}
	return out
}

// TestPicturesAreCurrent: the command that each picture names draws that picture from what the repository has recorded,
// and leaves the tables that it writes as they are.
func TestPicturesAreCurrent(t *testing.T) {
	dir, programs := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, figures), 0o755))
	for _, pattern := range []string{"docs/performance.md", "bench/*.md", "bench/*/testdata/*", figures + "/*.tsv",
		"bench/*/*.go", "bench/internal/*/*.go"} { // the programs are inputs of this test for go test's cache
		names, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, name := range names {
			rel, err := filepath.Rel(root, name)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(rel)), 0o755))
			text, err := os.ReadFile(name) // a terminal's record has carriage returns
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, rel), text, 0o644))
		}
	}
	all := pictures(t)
	var commands []string
	for name, text := range all {
		m := drawnBy.FindStringSubmatch(text)
		require.NotNil(t, m, "%s names no command", name)
		if command := entity.Replace(m[1]); !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	for _, command := range commands {
		argv := words(command)[4:] // without go run -C bench
		program := filepath.Join(programs, filepath.Base(argv[0])+".exe")
		if _, err := os.Stat(program); err != nil {
			build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, argv[0])
			build.Dir, build.Env = filepath.Join(root, "bench"), append(os.Environ(), "CGO_ENABLED=0")
			out, err := build.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		run := exec.Command(program, argv[1:]...)
		run.Dir = filepath.Join(dir, "bench")
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	}
	for name, text := range all {
		again, err := os.ReadFile(filepath.Join(dir, figures, name))
		require.NoError(t, err, "no command draws %s", name)
		require.Equal(t, string(again), text, "%s is not what its command draws", name)
	}
	for _, document := range []string{"docs/performance.md", "bench/results.md"} {
		text, err := os.ReadFile(filepath.Join(dir, document))
		require.NoError(t, err)
		require.Equal(t, read(t, document), string(text))
	}
}

// element is an element of a picture.
type element struct {
	name, class, text string
	x                 float64
	legend            bool
	fixed             bool // of a width that the font does not change, or upright
}

// elements are those of a picture in their order, or an error if it is not well-formed.
func elements(svg string) (out []element, width float64, err error) {
	var open []string
	legend := -1 // the depth of the legend
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out, width, nil
		}
		if err != nil {
			return nil, 0, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := element{name: token.Name.Local, legend: legend >= 0}
			for _, a := range token.Attr {
				switch a.Name.Local {
				case "class":
					e.class = a.Value
				case "x":
					e.x, _ = strconv.ParseFloat(a.Value, 64) // 0 of what is no number
				case "textLength", "transform":
					e.fixed = true
				case "width":
					if len(open) == 0 {
						width, _ = strconv.ParseFloat(a.Value, 64)
					}
				}
			}
			if e.class == "legend" {
				legend = len(open)
			}
			open, out = append(open, e.name), append(out, e)
		case xml.EndElement:
			if open = open[:len(open)-1]; len(open) == legend {
				legend = -1
			}
		case xml.CharData:
			if n := len(out); n > 0 && len(open) > 0 && open[len(open)-1] == "text" {
				out[n-1].text += string(token)
			}
		}
	}
}

var seriesClass = regexp.MustCompile(`\b(?:fill|line)(\d)\b`)

// pictureFaults are the ways in which a picture departs from the style of all.
func pictureFaults(svg string) (faults []string) {
	list, width, err := elements(svg)
	if err != nil {
		return []string{err.Error()}
	}
	if width == 0 || width > 900 {
		faults = append(faults, "wider than 900 pixels, or of no width")
	}
	named := map[string]bool{}
	for i, e := range list {
		if m := seriesClass.FindStringSubmatch(e.class); m != nil && e.legend {
			next := slices.IndexFunc(list[i:], func(e element) bool { return e.name == "text" })
			named[m[1]] = named[m[1]] || next > 0 && list[i+next].legend && list[i+next].text != ""
		}
	}
	for _, e := range list {
		if m := seriesClass.FindStringSubmatch(e.class); m != nil && !named[m[1]] {
			faults = append(faults, "no legend for series "+m[1])
			named[m[1]] = true // once
		}
		if e.name == "text" && !e.fixed {
			size := 7.2 * float64(utf8.RuneCountInString(e.text)) // in the widest of the fonts
			from := e.x
			if strings.Contains(e.class, "end") {
				from -= size
			} else if strings.Contains(e.class, "middle") {
				from -= size / 2
			}
			if from < 0 || from+size > width {
				faults = append(faults, "a text beyond the edge: "+e.text)
			}
		}
	}
	for _, attribute := range []string{` fill="`, ` stroke="`, "#"} {
		body := svg[strings.Index(svg, "</style>")+1:]
		if strings.Contains(strings.ReplaceAll(body, "&#", ""), attribute) {
			faults = append(faults, "a colour outside of the style: "+attribute)
		}
	}
	return faults
}

// splitStyle divides a picture into its style and the rest.
func splitStyle(svg string) (style, rest string) {
	before, after, _ := strings.Cut(svg, "<style>")
	style, after, _ = strings.Cut(after, "</style>")
	return style, before + after
}

// TestPictures: every picture is as wide as a page of GitHub shows unscaled, names each series, takes its colours from
// the sheet of its theme, of which there is one for light and one for dark pages, and is shown by a document.
func TestPictures(t *testing.T) {
	var shown strings.Builder
	for name, text := range documents(t) {
		require.NotRegexp(t, `!\[[^\]]*\]\([^)]*\.svg\)`, text, "%s: a picture has two themes: use <picture>", name)
		shown.WriteString(text)
	}
	all := pictures(t)
	for name, svg := range all {
		require.Empty(t, pictureFaults(svg), name)
		m := regexp.MustCompile(`^(.*)-(light|dark)\.svg$`).FindStringSubmatch(name)
		require.NotNil(t, m, "%s: want NAME-light.svg or NAME-dark.svg", name)
		base := m[1]
		lightStyle, light := splitStyle(all[base+"-light.svg"])
		darkStyle, dark := splitStyle(all[base+"-dark.svg"])
		require.Equal(t, light, dark, "%s: the themes differ in the style alone", base)
		require.NotEqual(t, lightStyle, darkStyle, base)
		require.Regexp(t, `<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?:docs/)?figures/`+base+
			`-dark\.svg">\s*<img[^>]* src="(?:docs/)?figures/`+base+`-light\.svg"[^>]* alt="[^"]+"[^>]*>\s*</picture>`,
			shown.String(), "no document shows %s", base)
	}
}

// TestPicturesBites: each of these faults is found.
func TestPicturesBites(t *testing.T) {
	const good = `<svg width="830"><style>.fill1{fill:#ff0000}</style><g class="legend"><circle class="fill1"/>` +
		`<text x="20">ours</text></g><rect class="fill1 pale"/><text x="800" class="end">12</text></svg>`
	require.Empty(t, pictureFaults(good))
	for edit, fault := range map[[2]string]string{
		{"830", "1100"}: "wider", {"</g>", ""}: "element <g>", {"ours", ""}: "no legend for series 1",
		{`"fill1 pale"`, `"line2"`}: "no legend for series 2", {`x="20"`, `x="820"`}: "beyond the edge: ours",
		{`<rect class`, `<rect fill="red" class`}:     "a colour outside",
		{`x="800" class="end"`, `x="10" class="end"`}: "beyond the edge: 12",
	} {
		require.Contains(t, strings.Join(pictureFaults(strings.Replace(good, edit[0], edit[1], 1)), "; "), fault)
	}
	require.Equal(t, []string{"a", "--b=c d", "e"}, words(`a '--b=c d' 'e'`))
}
