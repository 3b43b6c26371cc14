// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// Shard is one file of a set: its name and what it holds.
type Shard struct {
	File    string
	Tensors []Tensor
}

// maxIndex bounds the size of an index file, in bytes.
const maxIndex = 64 << 20

// index is the JSON of model.safetensors.index.json.
type index struct {
	Metadata  map[string]any    `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"`
}

// IndexFile is the name of the index of a set named base, as in "model".
func IndexFile(base string) string { return base + ".safetensors.index.json" }

// Split distributes the arrays over files of at most maxBytes bytes of elements, in the
// order given, as transformers does; an array that is larger has a file of its own. The
// files are base.safetensors alone, without an index, or base-00001-of-0000n.safetensors
// and so on with the contents of IndexFile(base). maxBytes ≤ 0 means no limit.
func Split(base string, tensors []Tensor, maxBytes int64) (shards []Shard, indexJSON []byte, err error) {
	var total, size int64
	shards = []Shard{{}}
	for _, t := range tensors {
		n, err := t.Size()
		if err != nil {
			return nil, nil, err
		}
		last := &shards[len(shards)-1]
		if maxBytes > 0 && len(last.Tensors) > 0 && size+n > maxBytes {
			shards = append(shards, Shard{})
			last, size = &shards[len(shards)-1], 0
		}
		last.Tensors = append(last.Tensors, t)
		size += n
		total += n
	}
	if len(shards) == 1 {
		shards[0].File = base + ".safetensors"
		return shards, nil, nil
	}
	ix := index{Metadata: map[string]any{"total_size": total}, WeightMap: map[string]string{}}
	for i := range shards {
		shards[i].File = fmt.Sprintf("%s-%05d-of-%05d.safetensors", base, i+1, len(shards))
		for _, t := range shards[i].Tensors {
			if ix.WeightMap[t.Name] != "" {
				return nil, nil, fmt.Errorf("tensor %q is given twice", t.Name)
			}
			ix.WeightMap[t.Name] = shards[i].File
		}
	}
	indexJSON, err = ix.encode()
	return shards, indexJSON, err
}

func (ix index) encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(ix)
	return b.Bytes(), err
}

// Set is the arrays of one file, or of several with an index.
type Set struct {
	files map[string]*Reader // by file name
	where map[string]*Reader // by the array's name
}

// OpenSet opens base.safetensors in the folder or, if there is none, the files that
// its index names. Index and files must name the same arrays. The caller closes the Set.
func OpenSet(fsys vfs.FS, dir, base string) (*Set, error) {
	s := &Set{files: map[string]*Reader{}, where: map[string]*Reader{}}
	single := base + ".safetensors"
	err := s.open(fsys, dir, single)
	if errors.Is(err, fs.ErrNotExist) {
		err = s.openIndex(fsys, dir, base)
		if errors.Is(err, fs.ErrNotExist) && len(s.files) == 0 {
			err = fmt.Errorf("%s has neither %s nor %s: %w", dir, single, IndexFile(base), fs.ErrNotExist)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open adds one file with all its arrays.
func (s *Set) open(fsys vfs.FS, dir, file string) error {
	r, err := Open(fsys, filepath.Join(dir, file))
	if err != nil {
		return err
	}
	s.files[file] = r
	for _, e := range r.header.entries {
		if s.where[e.Name] != nil {
			return fmt.Errorf("tensor %q is both in %s and in %s", e.Name, s.where[e.Name].name, r.name)
		}
		s.where[e.Name] = r
	}
	return nil
}

func (s *Set) openIndex(fsys vfs.FS, dir, base string) error {
	name := filepath.Join(dir, IndexFile(base))
	text, err := vfs.ReadFile(fsys, name, maxIndex)
	if err != nil {
		return err
	}
	weightMap, err := parseIndex(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	files := slices.Sorted(maps.Values(weightMap))
	for _, file := range slices.Compact(files) {
		if file == "" || file != filepath.Base(file) || strings.ContainsAny(file, `/\:`) || file == ".." ||
			file == "." {
			return fmt.Errorf("%s: %q is not the name of a file in the same folder", name, clip(file))
		}
		if err := s.open(fsys, dir, file); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, tensor := range slices.Sorted(maps.Keys(weightMap)) {
		if file := weightMap[tensor]; s.where[tensor] != s.files[file] {
			return fmt.Errorf("%s: tensor %q is not in %s", name, clip(tensor), file)
		}
	}
	for _, tensor := range s.Names() {
		if _, ok := weightMap[tensor]; !ok {
			return fmt.Errorf("%s does not name tensor %q of %s", name, clip(tensor), s.where[tensor].name)
		}
	}
	return nil
}

// parseIndex reads the weight_map of an index, and passes over the rest.
func parseIndex(text []byte) (weightMap map[string]string, err error) {
	p := parser{dec: json.NewDecoder(bytes.NewReader(text))}
	err = p.object("index", func(key string) error {
		if key != "weight_map" {
			var passed json.RawMessage
			if err := p.dec.Decode(&passed); err != nil {
				return fmt.Errorf("index is not JSON: %w", err)
			}
			return nil
		}
		weightMap = map[string]string{}
		return p.object(key, func(tensor string) (err error) {
			if len(weightMap) == maxEntries {
				return fmt.Errorf("it names more than %d tensors", maxEntries)
			}
			weightMap[tensor], err = p.string("weight_map." + clip(tensor))
			return err
		})
	})
	switch {
	case err != nil:
		return nil, err
	case len(weightMap) == 0:
		return nil, errors.New("no weight_map")
	case len(bytes.TrimSpace(text[p.dec.InputOffset():])) > 0:
		return nil, errors.New("there is text after the JSON object")
	}
	return weightMap, nil
}

// Names lists the arrays of all files, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.where)) }

// Lookup finds an array and the file that it is in.
func (s *Set) Lookup(name string) (*Reader, Entry, bool) {
	r := s.where[name]
	if r == nil {
		return nil, Entry{}, false
	}
	e, ok := r.Lookup(name)
	return r, e, ok
}

// Close closes the files.
func (s *Set) Close() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		errs = append(errs, s.files[name].Close())
	}
	return errors.Join(errs...)
}
