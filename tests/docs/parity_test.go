// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/catalog"
)

var rewrite = flag.Bool("rewrite", false, "rewrite docs/parity.md")

// answer is a row of docs/parity.md.
type answer struct{ names, kind, text, test string }

// parity is what docs/parity.md is made of: the names of HuggingFace's and the answers to them, by section.
type parity struct {
	names   map[string][]string
	answers map[string][]answer
	tests   map[string]bool // as "trainer.TestNeftune"
}

// paritySections are the sections in the order of the page.
var paritySections = []struct{ key, title, column string }{
	{"arguments", "TrainingArguments and Seq2SeqTrainingArguments", "argument"},
	{"Trainer", "Methods and properties of Trainer", "transformers"},
	{"events", "Events of callbacks", "event"},
	{"callbacks", "Callbacks", "class"},
	{"schedules", "Schedules", "name"},
	{"optimizers", "Optimizers", "name"},
	{"samplers", "Samplers and loaders", "class"},
	{"collators", "Collators", "class"},
	{"metrics", "Metrics of evaluate", "name"},
	{"trackers", "Trackers", "name"},
	{"Accelerator", "Methods and properties of Accelerator", "accelerate"},
	{"accelerate", "Other names of accelerate", "name"},
}

// readParity collects names and answers.
func readParity(t *testing.T) *parity {
	p := &parity{names: map[string][]string{}, answers: map[string][]answer{}, tests: testNames(t)}
	var theirs map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(read(t, "tests/docs/testdata/huggingface.json")), &theirs))
	var members map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(read(t, "tests/docs/testdata/members.json")), &members))
	maps.Copy(theirs, members)
	for key, list := range theirs {
		var names []string
		if json.Unmarshal(list, &names) != nil {
			continue // a version
		}
		switch key {
		case "loaders":
			key = "samplers"
		case "handlers":
			key = "accelerate"
		}
		p.names[key] = append(p.names[key], names...)
	}
	tests := map[string]map[string]string{}
	for line := range strings.Lines(read(t, "tests/docs/testdata/parity.tsv")) {
		cells := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		require.Len(t, cells, 5, line)
		if cells[2] != "" {
			p.answers[cells[0]] = append(p.answers[cells[0]], answer{cells[1], cells[2], cells[3], cells[4]})
			continue
		}
		if tests[cells[0]] == nil {
			tests[cells[0]] = map[string]string{}
		}
		tests[cells[0]][cells[1]] = cells[4]
	}
	p.arguments(t, tests["arguments"])
	p.overridden(t, "Trainer", "transformers' Trainer", tests["Trainer"])
	p.overridden(t, "Accelerator", "accelerate's Accelerator", tests["Accelerator"])
	for _, name := range p.names["optimizers"] {
		if slices.Contains(catalog.RefusedOptimizers(), name) {
			p.answers["optimizers"] = append(p.answers["optimizers"], answer{names: name, kind: "refused",
				text: catalog.WhyRefused(name)})
		}
	}
	return p
}

// arguments answers the arguments by what the parser does with them.
func (p *parity) arguments(t *testing.T, tests map[string]string) {
	rows := map[string]args.Known{}
	for _, k := range slices.Concat(args.HuggingFace(), args.Libraries()) {
		rows[k.Name] = k
	}
	usage := map[string]string{}
	for f := range reflect.TypeFor[args.TrainingArguments]().Fields() {
		usage[f.Tag.Get("json")] = f.Tag.Get("usage")
	}
	used := 0
	for _, name := range p.names["arguments"] {
		a := answer{names: name, kind: "works", text: usage[name], test: tests[name]}
		if k, known := rows[name]; known && usage[name] == "" {
			switch k.Status {
			case args.StatusRenamed:
				a.kind, a.text = "other form", "`"+k.Target+"`"
			case args.StatusNoEffect:
				a.kind, a.text = "no meaning", k.Reason
			case args.StatusRefused:
				a.kind, a.text = "refused", "want "+k.Reason
			default:
				a.kind, a.text = "refused", "not built: "+k.Reason
			}
		}
		if a.test != "" {
			used++
		}
		p.answers["arguments"] = append(p.answers["arguments"], a)
	}
	require.Equal(t, len(tests), used, "parity.tsv has a test for an argument that there is not")
}

// overridden takes the answers of a table in docs/overriding.md, and the tests of parity.tsv by the first name of a
// row.
func (p *parity) overridden(t *testing.T, key, title string, tests map[string]string) {
	_, section, ok := strings.Cut(read(t, "docs/overriding.md"), "\n## "+title+"\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	first := regexp.MustCompile("`(\\w+)")
	used := map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 || strings.TrimSpace(cells[1]) == "" {
			continue
		}
		a := answer{names: strings.TrimSpace(cells[0]), kind: strings.TrimSpace(cells[1]),
			text: strings.TrimSpace(cells[2])}
		if m := first.FindStringSubmatch(a.names); m != nil {
			a.test, used[m[1]] = tests[m[1]], true
		}
		p.answers[key] = append(p.answers[key], a)
	}
	for name := range tests {
		require.True(t, used[name], "parity.tsv has a test for %s of %s, and docs/overriding.md no row", name, title)
	}
}

// testNames are all tests, as "trainer.TestNeftune".
func testNames(t *testing.T) map[string]bool {
	out, one := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range one.FindAllSubmatch(text, -1) {
			out[filepath.ToSlash(dir)+"."+string(m[1])] = true
		}
		return err
	}))
	return out
}

// faults are what the page would claim without showing it, and the names that it does not answer.
func (p *parity) faults() (list []string) {
	for _, s := range paritySections {
		seen := map[string]int{}
		for _, a := range p.answers[s.key] {
			switch {
			case !slices.Contains(kinds, a.kind):
				list = append(list, fmt.Sprintf("%s: %s is %q: want one of %v", s.key, a.names, a.kind, kinds))
			case a.kind == "works" && a.test == "":
				list = append(list, fmt.Sprintf("%s: %s works, by no test: parity.tsv needs one", s.key, a.names))
			case a.kind != "no meaning" && a.text == "":
				list = append(list, fmt.Sprintf("%s: %s says nothing", s.key, a.names))
			}
			if a.test != "" && !p.tests[a.test] {
				list = append(list, fmt.Sprintf("%s: %s: there is no test %s", s.key, a.names, a.test))
			}
			for _, name := range regexp.MustCompile(`\w+`).FindAllString(a.names, -1) {
				seen[name]++
			}
		}
		for _, name := range p.names[s.key] {
			if seen[name] == 0 {
				list = append(list, fmt.Sprintf("%s: nothing answers %s", s.key, name))
			}
		}
	}
	return list
}

const parityHead = `# Parity with transformers and accelerate

Every name of transformers 5.24 and accelerate 1.15 that a training script meets, and its counterpart here. *Works*: the
same name or its Go form has the same meaning; the named test shows it. *Other form*: available differently. *Refused*:
an error, or not available, with the reason or an alternative. *No meaning*: accepted and not needed.

The lists of names come from the packages themselves (%[1]stests/docs/testdata/huggingface.py%[1]s), the answers about
arguments from the parser, those about methods from [overriding.md](overriding.md), and the others, with the tests, from
%[1]stests/docs/testdata/parity.tsv%[1]s. %[1]sgo test ./tests/docs -run TestParity -rewrite%[1]s writes the page.
`

// page is docs/parity.md.
func (p *parity) page() string {
	var b strings.Builder
	fmt.Fprintf(&b, parityHead, "`")
	fmt.Fprintf(&b, "\n| | %s |\n|---%s|\n", strings.Join(kinds, " | "), strings.Repeat("|---:", len(kinds)))
	for _, s := range paritySections {
		count := map[string]int{}
		for _, a := range p.answers[s.key] {
			count[a.kind] += max(1, strings.Count(a.names, ", ")+1)
		}
		fmt.Fprintf(&b, "| %s", s.title)
		for _, kind := range kinds {
			fmt.Fprintf(&b, " | %d", count[kind])
		}
		b.WriteString(" |\n")
	}
	for _, s := range paritySections {
		fmt.Fprintf(&b, "\n## %s\n\n| %s | | here | test |\n|---|---|---|---|\n", s.title, s.column)
		for _, a := range p.answers[s.key] {
			names := a.names
			if !strings.Contains(names, "`") {
				names = "`" + strings.ReplaceAll(names, ", ", "`, `") + "`"
			}
			test := ""
			if dir, name, ok := strings.Cut(a.test, "."); ok {
				test = fmt.Sprintf("`%s` (%s)", name, dir)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", names, a.kind, escaped(a.text), test)
		}
	}
	return b.String()
}

func escaped(text string) string { return strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(text) }

// TestParity: docs/parity.md answers every name of HuggingFace's, what works names a test that exists, and the page is
// what the sources say.
func TestParity(t *testing.T) {
	p := readParity(t)
	require.Empty(t, p.faults())
	const path = "docs/parity.md"
	if *rewrite {
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(p.page()), 0o644))
	}
	require.Equal(t, p.page(), read(t, path), "go test ./tests/docs -run TestParity -rewrite")
}

func TestParityBites(t *testing.T) {
	p := &parity{names: map[string][]string{"events": {"on_a", "on_b", "on_c", "on_d", "on_e"}},
		tests: map[string]bool{"trainer.TestA": true}, answers: map[string][]answer{"events": {
			{"on_a", "works", "`OnA`", "trainer.TestA"}, {"on_b", "works", "`OnB`", ""},
			{"on_c", "other form", "", ""}, {"on_d", "works", "`OnD`", "trainer.TestGone"},
			{"on_x", "maybe", "x", ""}}}}
	require.Equal(t, []string{
		"events: on_b works, by no test: parity.tsv needs one",
		"events: on_c says nothing",
		"events: on_d: there is no test trainer.TestGone",
		`events: on_x is "maybe": want one of [works other form refused no meaning]`,
		"events: nothing answers on_e",
	}, p.faults())
}
