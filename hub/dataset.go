// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"

	"github.com/lockstep-ml/lockstep/internal/compressed"
)

// The splits that data sets usually have.
const (
	Train      = "train"
	Validation = "validation"
	Test       = "test"
)

// Selection says which files of a data set are wanted.
type Selection struct {
	Revision string // a branch, a tag or a commit; "" is DefaultRevision
	// Config is one of the configurations that the data set's README.md names; "": the default one.
	Config string
	// Splits are wanted; those that the data set lacks are left out of the result.
	Splits []string
	// Extensions are those of the files that the caller reads, such as .jsonl; each also with .gz or .zst behind it.
	Extensions []string
}

// maxCard bounds a README.md, in bytes.
const maxCard = 16 << 20

// notData are files that lie beside data.
var notData = []string{"config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}

// Dataset downloads the files of some splits of a data set, and gives their paths by split. Which files a split has is
// found as datasets.load_dataset does: by the configs of README.md, or else by data/SPLIT-00000-of-00001, by folders
// and by file names such as train.jsonl or dev.csv; what fits none is train. Programs of a data set are not run.
func (c *Client) Dataset(ctx context.Context, name string, want Selection) (map[string][]string, error) {
	s, err := c.open(ctx, Repo{Kind: Datasets, Name: name, Revision: want.Revision})
	if err != nil {
		return nil, err
	}
	defer s.close() // nothing is written by it
	splits, err := s.splits(ctx, want)
	if err != nil {
		return nil, err
	}
	var files []File
	out := map[string][]string{}
	for _, split := range want.Splits {
		for _, f := range splits.files[split] {
			files = append(files, f)
			out[split] = append(out[split], filepath.Join(s.dir(), filepath.FromSlash(f.Path)))
		}
	}
	if len(files) == 0 {
		return nil, s.noSplit(want, splits)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return out, s.need(ctx, slices.CompactFunc(files, func(a, b File) bool { return a.Path == b.Path }))
}

// splitFiles are the files of a data set by split, in the order in which the splits were found.
type splitFiles struct {
	names []string
	files map[string][]File
}

func (s *splitFiles) add(split string, files []File) {
	if len(files) == 0 {
		return
	}
	if s.files == nil {
		s.files = map[string][]File{}
	}
	if s.files[split] == nil {
		s.names = append(s.names, split)
	}
	s.files[split] = append(s.files[split], files...)
}

// splits finds which files the splits have.
func (s *session) splits(ctx context.Context, want Selection) (splitFiles, error) {
	readable := readableFiles(s.files, want.Extensions)
	configs, err := s.card(ctx)
	if err != nil {
		return splitFiles{}, err
	}
	chosen, err := s.choose(configs, want.Config)
	if err != nil {
		return splitFiles{}, err
	}
	if len(readable) == 0 {
		return splitFiles{}, s.unreadable(want.Extensions)
	}
	if chosen == nil {
		return bySplit(readable), nil
	}
	if chosen.dir != "" {
		readable = globbed(readable, chosen.dir+"/**")
	}
	if len(chosen.data) == 0 {
		return bySplit(readable), nil
	}
	var out splitFiles
	for _, d := range chosen.data {
		for _, pattern := range d.patterns {
			out.add(d.split, globbed(readable, path.Join(chosen.dir, pattern)))
		}
	}
	if len(out.names) == 0 {
		return out, s.unreadable(want.Extensions)
	}
	return out, nil
}

// readableFiles are those that the caller reads, without hidden ones.
func readableFiles(files []File, extensions []string) []File {
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool {
		for part := range strings.SplitSeq(f.Path, "/") {
			if strings.HasPrefix(part, ".") || strings.HasPrefix(part, "__") {
				return true
			}
		}
		name := strings.ToLower(path.Base(f.Path))
		return slices.Contains(notData, name) ||
			!slices.Contains(extensions, path.Ext(compressed.TrimExt(name)))
	})
}

// sharded are the files that push_to_hub of a data set writes.
var sharded = regexp.MustCompile(`^data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*$`)

// keywords of names, by split.
var keywords = []struct {
	split string
	in    *regexp.Regexp // names of folders or files
}{
	{Train, keyword("train|training")},
	{Validation, keyword("validation|valid|dev|val")},
	{Test, keyword("test|testing|eval|evaluation")},
}

// keyword matches one of some words between what is no letter.
func keyword(words string) *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[-._ 0-9])(?:` + words + `)(?:[-._ 0-9]|$)`)
}

// bySplit divides files by their names.
func bySplit(files []File) (out splitFiles) {
	for _, f := range files {
		if m := sharded.FindStringSubmatch(f.Path); m != nil {
			out.add(m[1], []File{f})
		}
	}
	if len(out.names) == 0 {
		out = byKeyword(files, func(f File) []string { return strings.Split(path.Dir(f.Path), "/") })
	}
	if len(out.names) == 0 {
		out = byKeyword(files, func(f File) []string { return []string{path.Base(f.Path)} })
	}
	if len(out.names) == 0 {
		out.add(Train, files)
	}
	return out
}

// byKeyword divides files by words in some of their names.
func byKeyword(files []File, names func(f File) []string) (out splitFiles) {
	for _, k := range keywords {
		for _, f := range files {
			if slices.ContainsFunc(names(f), k.in.MatchString) {
				out.add(k.split, []File{f})
			}
		}
	}
	return out
}

// configuration is one of the README.md of a data set.
type configuration struct {
	name string
	main bool // the default one
	dir  string
	data []splitPatterns // empty: by the names of files
}

type splitPatterns struct {
	split    string
	patterns []string
}

// card reads the configurations of README.md.
func (s *session) card(ctx context.Context) ([]configuration, error) {
	f, ok := s.file("README.md")
	if !ok {
		return nil, nil
	}
	if err := s.need(ctx, []File{f}); err != nil {
		return nil, err
	}
	text, err := s.read(s.pointer(f), maxCard)
	if err != nil {
		return nil, err
	}
	configs, err := parseCard(text)
	if err != nil {
		return nil, fmt.Errorf("hub: README.md of %s: %w", s.repo, err)
	}
	return configs, nil
}

// parseCard reads the configs in the YAML at the beginning of a README.md.
func parseCard(text []byte) ([]configuration, error) {
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	rest, ok := bytes.CutPrefix(text, []byte("---\n"))
	head, _, closed := bytes.Cut(rest, []byte("\n---"))
	if !ok || !closed {
		return nil, nil
	}
	card, err := yaml.Parser().Unmarshal(head)
	if err != nil {
		return nil, err
	}
	list, _ := card["configs"].([]any)
	var out []configuration
	for _, item := range list {
		m, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("a config is %v: want a name and its data_files", item)
		}
		c := configuration{name: textOr(m["config_name"], "default"), dir: textOr(m["data_dir"], "")}
		c.main, _ = m["default"].(bool)
		if c.data, err = parseDataFiles(m["data_files"]); err != nil {
			return nil, fmt.Errorf("data_files of the config %s: %w", c.name, err)
		}
		if err := c.check(); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// check refuses patterns that lead out of the repository.
func (c *configuration) check() error {
	names := []string{}
	if c.dir = strings.Trim(path.Clean("/"+c.dir), "/"); c.dir != "" {
		names = append(names, c.dir)
	}
	for _, d := range c.data {
		names = append(names, d.patterns...)
	}
	for _, name := range names {
		if strings.Contains(name, "://") {
			return fmt.Errorf("the config %s has data at %s: want files of the repository", c.name, name)
		}
		if err := checkPath(name); err != nil {
			return fmt.Errorf("the config %s: %w", c.name, err)
		}
	}
	return nil
}

func textOr(v any, otherwise string) string {
	if s, ok := v.(string); ok && s != "" {
		return s
	}
	return otherwise
}

// parseDataFiles reads data_files: a pattern or several, which are train's, or such for each split.
func parseDataFiles(v any) ([]splitPatterns, error) {
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var out []splitPatterns
	for _, item := range list {
		d := splitPatterns{split: Train}
		paths := item
		if m, ok := item.(map[string]any); ok {
			d.split, paths = textOr(m["split"], Train), m["path"]
		}
		several, ok := paths.([]any)
		if !ok {
			several = []any{paths}
		}
		for _, p := range several {
			pattern, ok := p.(string)
			if !ok || pattern == "" {
				return nil, fmt.Errorf("%v: want names of files, or split and path", item)
			}
			d.patterns = append(d.patterns, strings.TrimPrefix(pattern, "./"))
		}
		out = append(out, d)
	}
	return out, nil
}

// choose is the configuration that is wanted; nil if the data set has none.
func (s *session) choose(configs []configuration, name string) (*configuration, error) {
	var names []string
	for i, c := range configs {
		if c.name == name || name == "" && (c.main || c.name == "default" || len(configs) == 1) {
			return &configs[i], nil
		}
		names = append(names, c.name)
	}
	switch {
	case len(configs) > 0 && name == "":
		return nil, fmt.Errorf("hub: %s has several configurations: want one of %s", s.repo, strings.Join(names, ", "))
	case name != "":
		return nil, faultf(ErrFile, "%s has no configuration %s in its README.md: want %s", s.repo, name,
			cmp.Or(strings.Join(names, ", "), "none"))
	}
	return nil, nil
}

// globbed are the files that a pattern of datasets matches: * is any text without slashes, ** any text.
func globbed(files []File, pattern string) []File {
	text := regexp.QuoteMeta(pattern)
	text = strings.NewReplacer(`\*\*/`, `(?:.*/)?`, `\*\*`, `.*`, `\*`, `[^/]*`, `\?`, `[^/]`, `\[`, `[`, `\]`,
		`]`).Replace(text)
	re, err := regexp.Compile(`^(?s:` + text + `)$`)
	if err != nil { // a [ without a ]
		re = regexp.MustCompile(`^` + regexp.QuoteMeta(pattern) + `$`)
	}
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool { return !re.MatchString(f.Path) })
}

// unreadable is the error of a data set without a file that the caller reads.
func (s *session) unreadable(extensions []string) error {
	have := map[string]int{}
	for _, f := range s.files {
		if ext := path.Ext(f.Path); ext != "" && !strings.HasPrefix(path.Base(f.Path), ".") && ext != ".md" {
			have[ext]++
		}
	}
	text := "no files of data"
	if names := slices.Sorted(maps.Keys(have)); len(names) > 0 {
		text = "files that end in " + strings.Join(names[:min(len(names), 8)], ", ")
	}
	return faultf(ErrFile, "%s has %s: want %s", s.repo, text, strings.Join(extensions, ", "))
}

// noSplit is the error of splits that a data set lacks.
func (s *session) noSplit(want Selection, have splitFiles) error {
	return faultf(ErrFile, "%s has no split %s: want one of %s", s.repo, strings.Join(want.Splits, " or "),
		strings.Join(have.names, ", "))
}
