// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pytorchSections are the sections of docs/pytorch.md in their order. The names of the first are forms of Python, for
// which there is no list.
var pytorchSections = []struct{ key, title, column string }{
	{"script", "In a script", "Python"},
	{"tensors", "Tensors", "torch, torch.Tensor, torch.nn.functional"},
	{"nn", "Layers and losses", "torch.nn"},
	{"optim", "Optimizers", "torch.optim"},
	{"schedules", "Schedules", "torch.optim.lr_scheduler"},
	{"data", "Data", "torch.utils.data"},
}

// translation is what to write for names of PyTorch; an empty text: they are not built.
type translation struct{ names, text string }

// split lists the names.
func (a translation) split() []string { return strings.Split(a.names, "; ") }

// readTranslations reads pytorch.tsv, by section.
func readTranslations(t *testing.T) map[string][]translation {
	out := map[string][]translation{}
	for line := range strings.Lines(read(t, "tests/docs/testdata/pytorch.tsv")) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, cells, 3, line)
		out[cells[0]] = append(out[cells[0]], translation{cells[1], cells[2]})
	}
	return out
}

// translationFaults lists names of PyTorch that a section does not answer once, names that PyTorch does not have, and
// answers with a Go name that does not exist.
func translationFaults(rows []translation, theirs []string, exported map[string]map[string]bool) (list []string) {
	count := map[string]int{}
	for _, a := range rows {
		for _, name := range a.split() {
			count[name]++
			if theirs != nil && !slices.Contains(theirs, name) {
				list = append(list, "PyTorch has no "+name)
			}
		}
		for _, m := range aName.FindAllStringSubmatch(a.text, -1) {
			name := m[2]
			if m[3] != "" {
				name += "." + m[3]
			}
			if !exported[m[1]][name] {
				list = append(list, fmt.Sprintf("%s: there is no %s.%s", a.names, m[1], name))
			}
		}
	}
	for _, name := range theirs {
		if count[name] != 1 {
			list = append(list, fmt.Sprintf("%s has %d answers", name, count[name]))
		}
	}
	return list
}

const pytorchHead = `# PyTorch in Go

What to write for the names of PyTorch %s. Every op takes a context first: ~c~, or ~c.Ctx~ where ~c~ is an
~*nn.Ctx~. Dims, shapes and broadcasting have PyTorch's rules. For the names of transformers' Trainer and of accelerate
see [What you overrode, and what you write](overriding.md); for arguments [Arguments](arguments.md); for every name
with its test [Parity](parity.md).

The names of layers, losses, optimizers, schedules and data sets come from the packages; those of tensors are the ones
that at least ten modeling files of transformers call (~tests/docs/testdata/pytorch.py~). The answers are in
~tests/docs/testdata/pytorch.tsv~; ~go test ./tests/docs -run TestPyTorch -rewrite~ writes the page.
`

// pytorchPage is docs/pytorch.md.
func pytorchPage(version string, answers map[string][]translation) string {
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(strings.Replace(pytorchHead, "%s", version, 1), "~", "`"))
	for _, s := range pytorchSections {
		fmt.Fprintf(&b, "\n## %s\n\n| %s | Lockstep |\n|---|---|\n", s.title, s.column)
		var missing []string
		for _, a := range answers[s.key] {
			if a.text == "" {
				missing = append(missing, a.split()...)
				continue
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.Join(a.split(), "`, `"), escaped(a.text))
		}
		if len(missing) > 0 {
			b.WriteString("\n" + filled("Not built: `"+strings.Join(missing, "`, `")+"`."))
		}
	}
	return b.String()
}

// filled is a paragraph in lines of at most 120 columns.
func filled(text string) string {
	var b strings.Builder
	width := 0
	for _, word := range strings.Fields(text) {
		switch {
		case width == 0:
		case width+1+len(word) > 120:
			b.WriteByte('\n')
			width = 0
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += len(word)
	}
	return b.String() + "\n"
}

// TestPyTorch: docs/pytorch.md answers every name of pytorch.json, by Go names that exist.
func TestPyTorch(t *testing.T) {
	var theirs map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(read(t, "tests/docs/testdata/pytorch.json")), &theirs))
	answers, packages := readTranslations(t), exported(t)
	require.Len(t, answers, len(pytorchSections))
	for _, s := range pytorchSections {
		var names []string
		if s.key != "script" {
			require.NoError(t, json.Unmarshal(theirs[s.key], &names))
			require.NotEmpty(t, names)
		}
		require.Empty(t, translationFaults(answers[s.key], names, packages), s.title)
	}
	var version string
	require.NoError(t, json.Unmarshal(theirs["torch_version"], &version))
	page := pytorchPage(strings.TrimSuffix(version, ".0"), answers)
	const path = "docs/pytorch.md"
	if *rewrite {
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(page), 0o644))
	}
	require.Equal(t, page, read(t, path), "go test ./tests/docs -run TestPyTorch -rewrite")
}

func TestPyTorchBites(t *testing.T) {
	packages := map[string]map[string]bool{"tensor": {"Add": true}, "nn": {"Ctx.Param": true}}
	require.Equal(t, []string{"sub: there is no tensor.Sub", "PyTorch has no gone", "gone: there is no nn.Ctx.Gone",
		"gone: there is no tensors.Add", "mul has 0 answers", "add has 2 answers"},
		translationFaults([]translation{{"add", "`tensor.Add`, `nn.Ctx.Param`"}, {"add", ""}, {"sub", "`tensor.Sub`"},
			{"gone", "`nn.Ctx.Gone`, tensors.Add"}}, []string{"mul", "add", "sub"}, packages))
}
