// SPDX-License-Identifier: Apache-2.0

package scripts

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/trainer"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the goldens in testdata and the tables in docs/arguments.md")

var tables = map[string]func() []args.Known{
	"run_clm.py": RunCLM, "run_glue.py": RunGLUE, "run_image_classification.py": RunImageClassification,
}

// own are the settings that the programs have themselves.
type own struct {
	ModelNameOrPath           string   `json:"model_name_or_path" usage:"x"`
	ConfigName                string   `json:"config_name" usage:"x"`
	TrainFile                 []string `json:"train_file" usage:"x"`
	ValidationFile            []string `json:"validation_file" usage:"x"`
	BlockSize                 int      `json:"block_size" usage:"x"`
	MaxTrainSamples           *int     `json:"max_train_samples" usage:"x"`
	MaxEvalSamples            *int     `json:"max_eval_samples" usage:"x"`
	ValidationSplitPercentage int      `json:"validation_split_percentage" usage:"x"`
	MaxSeqLength              int      `json:"max_seq_length" usage:"x"`
	DType                     string   `json:"dtype" usage:"x"`
	TestFile                  string   `json:"test_file" usage:"x"`
	TrainDir                  string   `json:"train_dir" usage:"x"`
	ValidationDir             string   `json:"validation_dir" usage:"x"`
	TrainValSplit             float64  `json:"train_val_split" usage:"x"`
	ModelRevision             string   `json:"model_revision" usage:"x"`
	CacheDir                  string   `json:"cache_dir" usage:"x"`
	Token                     string   `json:"token" usage:"x"`
}

// ownSet are those of the programs that take data sets of the Hub.
type ownSet struct {
	DatasetName       string `json:"dataset_name" usage:"x"`
	DatasetConfigName string `json:"dataset_config_name" usage:"x"`
}

func parse(script string, argv []string) (*args.Resolved, error) {
	structs := []any{args.Default(""), &own{ModelRevision: "main"}}
	if script != "run_image_classification.py" {
		structs = append(structs, &ownSet{})
	}
	loader := args.Bind(pflag.NewFlagSet(script, pflag.ContinueOnError), structs...)
	loader.Environ = func() []string { return nil }
	loader.Predicts = true
	loader.ForProgram(trainer.Program())
	loader.Know(tables[script]()...)
	loader.ForProgram(trainer.Program()) // as programs do: the reporters and engines that there are
	return loader.Parse(argv)
}

// commands are the command lines of testdata/commands.txt, without python.
func commands(t *testing.T) (out [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "commands.txt"))
	require.NoError(t, err)
	for block := range strings.SplitSeq(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n\n") {
		if words := strings.Fields(strings.NewReplacer("\\\n", " ", `"`, "").Replace(block)); words[0] == "python" {
			out = append(out, words[1:])
		}
	}
	return out
}

// The usual command lines of the scripts parse: what is not built says so, and nothing is unknown.
func TestCommands(t *testing.T) {
	var b strings.Builder
	seen := map[string]bool{}
	for _, c := range commands(t) {
		script := strings.ReplaceAll(c[0], "_no_trainer", "")
		require.NotNil(t, tables[script], script)
		seen[script] = true
		resolved, err := parse(script, c[1:])
		fmt.Fprintf(&b, "%s\n", strings.Join(c, " "))
		if err != nil {
			var e *args.Error
			require.True(t, errors.As(err, &e))
			for _, f := range e.Faults {
				require.Empty(t, f.Problem, "%v", f)
				fmt.Fprintf(&b, "  fault: %s\n", f)
			}
			continue
		}
		for _, n := range resolved.Notices {
			require.LessOrEqual(t, len(n.String()), 100, "%s", n)
			fmt.Fprintf(&b, "  %s\n", n)
		}
	}
	require.Len(t, seen, len(tables))
	compare(t, filepath.Join("testdata", "commands.golden"), b.String())
}

func compare(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), got)
}

// Every flag of the scripts is known, and its default changes nothing.
func TestEveryFlagOfTheScripts(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "flags.txt"))
	require.NoError(t, err)
	script, count := "", 0
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasPrefix(line, "#"):
		case !ok:
			script = name
		case name == "model_name_or_path" || name == "block_size": // their defaults are the programs' own
			count++
		default:
			count++
			resolved, err := parse(script, []string{"--" + name + "=" + value})
			require.NoError(t, err, script)
			if name != "max_length" { // an older name of a flag with a default of its own
				require.Empty(t, resolved.Notices, "%s --%s", script, name)
			}
		}
	}
	require.Greater(t, count, 60)
	for script, table := range tables {
		for _, k := range table() {
			require.Contains(t, string(text), "\n"+k.Name+" ", "%s has no flag %s", script, k.Name)
		}
	}
}

// The tables of docs/arguments.md are those of this package.
func TestDocument(t *testing.T) {
	const path = "../../../docs/arguments.md"
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	want := strings.ReplaceAll(string(page), "\r\n", "\n")
	for script, table := range tables {
		begin, end := fmt.Sprintf("<!-- begin %s -->\n", script), fmt.Sprintf("<!-- end %s -->\n", script)
		before, rest, ok := strings.Cut(want, begin)
		require.True(t, ok, begin)
		_, after, ok := strings.Cut(rest, end)
		require.True(t, ok, end)
		var b strings.Builder
		b.WriteString("| flag | default there | here | why |\n|---|---|---|---|\n")
		rows := table()
		slices.SortFunc(rows, func(a, b args.Known) int { return strings.Compare(a.Name, b.Name) })
		for _, k := range rows {
			value, reason := k.Default, k.Reason
			if value == "" {
				value = "none"
			}
			switch k.Status {
			case args.StatusRenamed:
				reason = "`" + k.Target + "`"
			case args.StatusRefused:
				reason = "want " + reason
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, value, k.Status, reason)
		}
		want = before + begin + b.String() + end + after
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, strings.ReplaceAll(string(page), "\r\n", "\n"),
		"go test ./examples/internal/scripts -rewrite")
}
