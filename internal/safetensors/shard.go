// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
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

// Split distributes the arrays over files of at most maxBytes bytes of elements, in the order given, as huggingface_hub
// does: an array that is larger has its own file, which comes before the one that was being filled. The files are
// base.safetensors alone, without an index, or base-00001-of-0000n.safetensors and so on with the contents of
// IndexFile(base), whose metadata is that given and total_size. maxBytes ≤ 0 means no limit.
func Split(base string, tensors []Tensor, maxBytes int64, metadata map[string]any) (shards []Shard, indexJSON []byte,
	err error) {
	var total, size int64
	var open []Tensor // the file that is being filled
	for _, t := range tensors {
		n, err := t.Size()
		if err != nil {
			return nil, nil, err
		}
		total += n
		switch {
		case maxBytes > 0 && n > maxBytes:
			shards = append(shards, Shard{Tensors: []Tensor{t}})
			continue
		case maxBytes > 0 && size+n > maxBytes:
			shards = append(shards, Shard{Tensors: open})
			open, size = nil, 0
		}
		open = append(open, t)
		size += n
	}
	if len(open) > 0 || len(shards) == 0 {
		shards = append(shards, Shard{Tensors: open})
	}
	if len(shards) == 1 {
		shards[0].File = base + ".safetensors"
		return shards, nil, nil
	}
	ix := index{Metadata: map[string]any{}, WeightMap: map[string]string{}}
	maps.Copy(ix.Metadata, metadata)
	ix.Metadata["total_size"] = total
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

// ParseSize reads a size in bytes as huggingface_hub and transformers have it for max_shard_size: a number, or one with
// the unit KB, MB, GB or TB (powers of 1000) in either case. It must be at least 1.
func ParseSize(text string) (int64, error) {
	number, unit := strings.TrimSpace(text), 1.0
	for i, name := range []string{"KB", "MB", "GB", "TB"} {
		if n := len(number) - 2; n >= 0 && strings.EqualFold(number[n:], name) {
			number, unit = strings.TrimSpace(number[:n]), math.Pow(1000, float64(i+1))
			break
		}
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && unit == 1 {
		if n < 1 {
			return 0, fmt.Errorf("size %q: want at least 1 byte", clip(text))
		}
		return n, nil
	}
	v, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil || unit == 1:
		return 0, fmt.Errorf("size %q: want a number of bytes, or one with the unit KB, MB, GB or TB", clip(text))
	case !(v*unit >= 1 && v*unit < math.MaxInt64):
		return 0, fmt.Errorf("size %q: want 1 byte to 8 EiB", clip(text))
	}
	return int64(v * unit), nil
}

// Set is the arrays of one file, or of several with an index.
type Set struct {
	files map[string]*Reader // by file name
	where map[string]*Array  // by the array's name
	// indexed is true if an index, or a PlacementsFile, names the arrays; scattered if the latter does.
	indexed, scattered bool
	closer             io.Closer // of a NewSet; nil of others
}

// NewSet is a set of arrays of another format. Closing it closes their file.
func NewSet(arrays []Source, file io.Closer) (*Set, error) {
	s := &Set{where: map[string]*Array{}, closer: file}
	for _, source := range arrays {
		a, err := source.array()
		if err != nil {
			return nil, err
		}
		if s.where[a.Name] != nil {
			return nil, fmt.Errorf("%s: tensor %q is there twice", source.In, clip(a.Name))
		}
		s.where[a.Name] = a
	}
	return s, nil
}

// OpenSet opens base.safetensors in the folder or, if there is none, the files that
// its index names or, if there is no index, those of its PlacementsFile, whose set base is then meant. Index and
// files must name the same arrays. The caller closes the Set.
func OpenSet(fsys vfs.FS, dir, base string) (*Set, error) {
	s := &Set{files: map[string]*Reader{}, where: map[string]*Array{}}
	single := base + ".safetensors"
	err := s.open(fsys, dir, single)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.openIndex(fsys, dir, base); errors.Is(err, fs.ErrNotExist) && !s.indexed {
			err = s.openScattered(fsys, dir, base)
		}
		if errors.Is(err, fs.ErrNotExist) && !s.indexed {
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
			return fmt.Errorf("tensor %q is both in %s and in %s", e.Name, s.where[e.Name].in(), r.name)
		}
		s.where[e.Name] = r.array(e)
	}
	return nil
}

func (s *Set) openIndex(fsys vfs.FS, dir, base string) error {
	name := filepath.Join(dir, IndexFile(base))
	text, err := vfs.ReadFile(fsys, name, maxIndex)
	if err != nil {
		return err
	}
	s.indexed = true
	weightMap, err := parseIndex(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	files := slices.Compact(slices.Sorted(maps.Values(weightMap)))
	if err := present(fsys, dir, files); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, file := range files {
		if err := s.open(fsys, dir, file); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, tensor := range slices.Sorted(maps.Keys(weightMap)) {
		if file := weightMap[tensor]; s.where[tensor] == nil || s.where[tensor].files[0] != s.files[file].name {
			return fmt.Errorf("%s: tensor %q is not in %s", name, clip(tensor), file)
		}
	}
	for _, tensor := range s.Names() {
		if _, ok := weightMap[tensor]; !ok {
			return fmt.Errorf("%s does not name tensor %q of %s", name, clip(tensor), s.where[tensor].in())
		}
	}
	return nil
}

// present returns an error that names all files that are not in the folder, or could not be.
func present(fsys vfs.FS, dir string, files []string) error {
	var missing []string
	for _, file := range files {
		if err := plainName(file); err != nil {
			return err
		}
		if _, err := fsys.Stat(filepath.Join(dir, file)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, clip(file))
		}
	}
	if n := len(missing); n > 0 {
		const most = 5
		list := strings.Join(missing[:min(n, most)], ", ")
		if n > most {
			list += fmt.Sprintf(" and %d more", n-most)
		}
		return fmt.Errorf("%d of %d files are missing: %s: %w", n, len(files), list, fs.ErrNotExist)
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
		return nil, errors.New("no weight_map: want one with at least one tensor")
	case len(bytes.TrimSpace(text[p.dec.InputOffset():])) > 0:
		return nil, errors.New("more text after the JSON object: want the object alone")
	}
	return weightMap, nil
}

// Names lists the arrays of all files, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.where)) }

// Scattered reports whether ranks wrote the parts of arrays that they hold in training: the arrays are a model's
// parameters, not the arrays of a saved model.
func (s *Set) Scattered() bool { return s.scattered }

// Lookup finds an array by name.
func (s *Set) Lookup(name string) (*Array, bool) {
	a, ok := s.where[name]
	return a, ok
}

// Close closes the files.
func (s *Set) Close() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		errs = append(errs, s.files[name].Close())
	}
	if s.closer != nil {
		errs = append(errs, s.closer.Close())
	}
	return errors.Join(errs...)
}
