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

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// PlacementsFile is the name of the file that lists which part of which array lies in which of the files that several
// ranks have written.
const PlacementsFile = "pieces.json"

// Versions of PlacementsFile. Without boxes the older one is written: earlier programs read it.
const (
	flatVersion = 1 // parts are ranges of the flat order of whole arrays
	boxVersion  = 2 // they may be ranges of the flat order of boxes
)

// What a PlacementsFile may hold.
const (
	maxPlacementsFile = 256 << 20 // bytes
	maxPlaced         = 4_000_000 // parts, and ranges of boxes, in all
	maxBoxes          = 1000      // boxes of one array
	maxSets           = 100
)

// Placements lists the arrays that are scattered over files: by set, such as "model" or "optimizer", and by name.
type Placements map[string]map[string]Scattered

// Scattered is an array of which several files have parts.
type Scattered struct {
	DType dtype.DType
	Shape []int
	// Stored are the parts, in the order of placement.Compare; none for an array without elements.
	Stored []Stored
}

// Stored is a part of an array. File has its elements as an array of one dim named by key.
type Stored struct {
	placement.Placement
	File string
}

// key is the name under which a file holds a part of an array of the set.
func key(set string, p placement.Placement) string { return set + "/" + p.String() }

// Check returns an error unless the parts of each array have each of its elements once.
func (p Placements) Check() error {
	for _, set := range slices.Sorted(maps.Keys(p)) {
		if set == "" || strings.Contains(set, "/") {
			return fmt.Errorf("%q cannot be the name of a set of tensors", clip(set))
		}
		for _, name := range slices.Sorted(maps.Keys(p[set])) {
			if err := p[set][name].check(); err != nil {
				return fmt.Errorf("tensor %q of %s: %w", clip(name), set, err)
			}
		}
	}
	return nil
}

func (a Scattered) check() error {
	rank, ok := rankOf(a.DType)
	if !ok {
		return fmt.Errorf("dtype %v cannot be written", a.DType)
	}
	size, err := elements[rank].size(a.Shape)
	if err != nil {
		return err
	}
	c := coverage{shape: a.Shape}
	for _, s := range a.Stored {
		if err := errors.Join(c.add(s.Placement), plainName(s.File)); err != nil {
			return err
		}
	}
	return c.complete(size / int64(elements[rank].bits/8))
}

// coverage adds up which elements of an array are somewhere.
type coverage struct {
	shape  []int
	boxes  []placement.Placement // whole ones
	before int64                 // elements of the boxes but the last
	at     int                   // elements of the last one, from its first
}

// add adds a part that must follow the one before in its box, or begin another box.
func (c *coverage) add(p placement.Placement) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if !slices.Equal(p.Shape, c.shape) {
		return fmt.Errorf("%s is a part of an array of shape %v: want shape %v", clip(p.String()), p.Shape, c.shape)
	}
	if len(c.boxes) == 0 || !p.SameBox(c.last()) {
		if err := c.begin(p); err != nil {
			return err
		}
	}
	switch {
	case p.Numel() == 0:
		return fmt.Errorf("%s has no elements: want parts with some", clip(p.String()))
	case p.Flat.Start > c.at:
		return fmt.Errorf("nobody has the elements [%d, %d) of %s", c.at, p.Flat.Start, clip(c.last().String()))
	case p.Flat.Start < c.at:
		return fmt.Errorf("two parts have the elements [%d, %d) of %s", p.Flat.Start, min(c.at, p.Flat.Stop),
			clip(c.last().String()))
	}
	c.at = p.Flat.Stop
	return nil
}

// last is the box that parts are added to.
func (c *coverage) last() placement.Placement { return c.boxes[len(c.boxes)-1] }

// begin begins another box, which has nothing of those before.
func (c *coverage) begin(p placement.Placement) error {
	if err := c.end(); err != nil {
		return err
	}
	if len(c.boxes) == maxBoxes {
		return fmt.Errorf("more than %d boxes", maxBoxes)
	}
	p.Flat = placement.Range{Stop: p.BoxNumel()}
	for _, q := range c.boxes {
		if p.Overlaps(q) {
			return fmt.Errorf("the boxes %s and %s have elements in common: want each element in one", clip(q.String()),
				clip(p.String()))
		}
	}
	c.boxes, c.at = append(c.boxes, p), 0
	return nil
}

// end ends a box.
func (c *coverage) end() error {
	if len(c.boxes) == 0 {
		return nil
	}
	if n := c.last().Numel(); c.at < n {
		return fmt.Errorf("nobody has the elements [%d, %d) of %s", c.at, n, clip(c.last().String()))
	}
	c.before += int64(c.at)
	return nil
}

// complete ends the array of so many elements.
func (c *coverage) complete(n int64) error {
	if err := c.end(); err != nil {
		return err
	}
	if c.before < n {
		return fmt.Errorf("nobody has %d of %d elements", n-c.before, n)
	}
	return nil
}

// version is the oldest version that has what p has.
func (p Placements) version() int {
	for _, set := range p {
		for _, a := range set {
			if slices.ContainsFunc(a.Stored, func(s Stored) bool { return !s.WholeBox() }) {
				return boxVersion
			}
		}
	}
	return flatVersion
}

// Encode returns the contents of the PlacementsFile, a line for each array.
func (p Placements) Encode() ([]byte, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"format_version\": %d,\n  \"tensors\": {", p.version())
	for i, set := range slices.Sorted(maps.Keys(p)) {
		b.WriteString(comma(i) + "\n    " + quote(set) + ": {")
		for i, name := range slices.Sorted(maps.Keys(p[set])) {
			a := p[set][name]
			rank, _ := rankOf(a.DType)
			fmt.Fprintf(&b, "%s\n      %s: {\"dtype\": \"%s\", \"shape\": [%s], \"pieces\": [", comma(i), quote(name),
				elements[rank].raw, dims(a.Shape))
			for i, s := range a.Stored {
				fmt.Fprintf(&b, "%s[%d,%d,%s%s]", comma(i), s.Flat.Start, s.Flat.Stop, quote(s.File),
					boxText(s.Placement))
			}
			b.WriteString("]}")
		}
		b.WriteString("\n    }")
	}
	b.WriteString("\n  }\n}\n")
	if b.Len() > maxPlacementsFile {
		return nil, fmt.Errorf("%s of %d bytes: want at most %d", PlacementsFile, b.Len(), maxPlacementsFile)
	}
	return b.Bytes(), nil
}

// boxText is ",[[[0,6]],[[0,2],[4,6]]]": of each dim the ranges; nothing for a box that is the whole array.
func boxText(p placement.Placement) string {
	if p.WholeBox() {
		return ""
	}
	var b strings.Builder
	for d, ranges := range p.Box {
		b.WriteString(comma(d) + "[")
		for i, r := range ranges {
			fmt.Fprintf(&b, "%s[%d,%d]", comma(i), r.Start, r.Stop)
		}
		b.WriteString("]")
	}
	return ",[" + b.String() + "]"
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// dims is "2,3".
func dims(shape []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(shape), "[]"), " ", ",")
}

// ReadPlacements reads and checks the PlacementsFile of a folder. The error matches fs.ErrNotExist if there is none.
func ReadPlacements(fsys vfs.FS, dir string) (Placements, error) {
	name := filepath.Join(dir, PlacementsFile)
	text, err := vfs.ReadFile(fsys, name, maxPlacementsFile)
	if err != nil {
		return nil, err
	}
	p, err := parsePlacements(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func parsePlacements(text []byte) (Placements, error) {
	p := placementsParser{parser: parser{dec: json.NewDecoder(bytes.NewReader(text))}}
	p.dec.UseNumber()
	var sets Placements
	version := ""
	err := p.object(PlacementsFile, func(key string) error {
		switch key {
		case "format_version":
			t, err := p.token()
			if _, ok := t.(json.Number); err == nil && !ok {
				return fmt.Errorf("format_version is %s: want a number", clip(fmt.Sprint(t)))
			}
			version = fmt.Sprint(t)
			if n, ok := number(t); err == nil && (!ok || n < flatVersion || n > boxVersion) {
				return fmt.Errorf("format version %s: this program reads versions %d to %d", clip(version), flatVersion,
					boxVersion)
			}
			return err
		case "tensors":
			sets = Placements{}
			return p.object(key, func(set string) (err error) {
				if len(sets) == maxSets {
					return fmt.Errorf("more than %d sets of tensors", maxSets)
				}
				sets[set], err = p.set(set)
				return err
			})
		}
		return fmt.Errorf("unknown key %q", clip(key))
	})
	switch {
	case err != nil:
		return nil, err
	case version == "":
		return nil, fmt.Errorf("no format_version: this program reads versions %d to %d", flatVersion, boxVersion)
	case sets == nil:
		return nil, errors.New("no tensors: want an object of sets")
	case len(bytes.TrimSpace(text[p.dec.InputOffset():])) > 0:
		return nil, errors.New("more text after the JSON object: want the object alone")
	}
	if err := sets.Check(); err != nil {
		return nil, err
	}
	if version == strconv.Itoa(flatVersion) && sets.version() != flatVersion {
		return nil, fmt.Errorf("format version %d with boxes: want version %d", flatVersion, boxVersion)
	}
	return sets, nil
}

// placementsParser counts what it has read.
type placementsParser struct {
	parser
	arrays, placed int
}

// count counts a part, or a range of a box.
func (p *placementsParser) count() error {
	if p.placed++; p.placed > maxPlaced {
		return fmt.Errorf("more than %d parts and ranges", maxPlaced)
	}
	return nil
}

func (p *placementsParser) set(set string) (map[string]Scattered, error) {
	arrays := map[string]Scattered{}
	return arrays, p.object(set, func(name string) (err error) {
		if p.arrays++; p.arrays > maxEntries {
			return fmt.Errorf("more than %d tensors", maxEntries)
		}
		arrays[name], err = p.scattered(name, fmt.Sprintf("tensor %q of %s", clip(name), clip(set)))
		return err
	})
}

func (p *placementsParser) scattered(name, what string) (a Scattered, err error) {
	shaped := false
	err = p.object(what, func(key string) error {
		switch key {
		case "dtype":
			raw, err := p.string(what + ": dtype")
			if err != nil {
				return err
			}
			el, ok := elementOf(raw)
			if !ok || el.dtype == dtype.Invalid {
				return fmt.Errorf("%s: unknown dtype %q", what, clip(raw))
			}
			a.DType = el.dtype
			return nil
		case "shape":
			shaped = true
			shape, err := p.ints(what + ": shape")
			for _, s := range shape {
				if s > math.MaxInt {
					return fmt.Errorf("%s: shape %v does not fit this machine", what, shape)
				}
				a.Shape = append(a.Shape, int(s))
			}
			return err
		case "pieces":
			return p.list(what, func() error {
				s, err := p.stored(what + ": piece")
				if err != nil {
					return err
				}
				a.Stored = append(a.Stored, s)
				return p.count()
			})
		}
		return fmt.Errorf("%s: unknown key %q", what, clip(key))
	})
	if err == nil && (!shaped || a.DType == dtype.Invalid) {
		err = fmt.Errorf("%s: want a dtype and a shape", what)
	}
	whole := placement.Whole(name, a.Shape...)
	for i := range a.Stored {
		s := &a.Stored[i]
		s.Name, s.Shape = name, a.Shape
		if s.Box == nil {
			s.Box = whole.Box
		}
	}
	return a, err
}

// list reads an array of JSON, of whose elements value reads one each.
func (p *placementsParser) list(what string, value func() error) error {
	if err := p.delim(what, '['); err != nil {
		return err
	}
	for p.dec.More() {
		if err := value(); err != nil {
			return err
		}
	}
	return p.delim(what, ']')
}

// stored reads [start, stop, file] or [start, stop, file, box].
func (p *placementsParser) stored(what string) (s Stored, err error) {
	var head [3]any
	if err := p.delim(what, '['); err != nil {
		return s, err
	}
	for i := range head {
		if head[i], err = p.token(); err != nil {
			return s, err
		}
	}
	start, okStart := number(head[0])
	stop, okStop := number(head[1])
	file, okFile := head[2].(string)
	if !okStart || !okStop || !okFile {
		return s, fmt.Errorf("%s %s: want [from, to, file] or [from, to, file, box]", what, clip(fmt.Sprint(head)))
	}
	s = Stored{placement.Placement{Flat: placement.Range{Start: start, Stop: stop}}, file}
	if p.dec.More() {
		if s.Box, err = p.box(what + ": box"); err != nil {
			return s, err
		}
	}
	return s, p.delim(what, ']')
}

// box reads, for each dim, a list of ranges [start, stop].
func (p *placementsParser) box(what string) (box [][]placement.Range, err error) {
	box = [][]placement.Range{}
	return box, p.list(what, func() error {
		if len(box) == maxDims {
			return fmt.Errorf("%s: more than %d dims", what, maxDims)
		}
		box = append(box, nil)
		dim := &box[len(box)-1]
		return p.list(what, func() error {
			r, err := p.ints(what)
			if err == nil && (len(r) != 2 || r[0] > math.MaxInt || r[1] > math.MaxInt) {
				err = fmt.Errorf("%s: range %v: want [start, stop]", what, r)
			}
			if err != nil {
				return err
			}
			*dim = append(*dim, placement.Range{Start: int(r[0]), Stop: int(r[1])})
			return p.count()
		})
	})
}

// number is a token that is an integer from 0.
func number(t any) (n int, ok bool) {
	num, ok := t.(json.Number)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(string(num))
	return n, err == nil && n >= 0
}

// openScattered opens the arrays of the set that are scattered over files.
func (s *Set) openScattered(fsys vfs.FS, dir, set string) error {
	index, err := ReadPlacements(fsys, dir)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, PlacementsFile)
	arrays, ok := index[set]
	if !ok {
		return fmt.Errorf("%s has no tensors of %q: %w", name, set, fs.ErrNotExist)
	}
	s.indexed, s.scattered = true, true
	want := map[*Reader]int{} // parts by file
	for _, array := range slices.Sorted(maps.Keys(arrays)) {
		a, err := s.gather(fsys, dir, set, array, arrays[array], want)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.where[array] = a
	}
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		r := s.files[file]
		have := 0
		for _, e := range r.header.entries {
			if strings.HasPrefix(e.Name, set+"/") {
				have++
			}
		}
		if have != want[r] {
			return fmt.Errorf("%s names %d parts of %s in %s, which has %d", name, want[r], set, r.name, have)
		}
	}
	return s.oneSave()
}

// The metadata that tells which save a file of parts belongs to.
const (
	runKey  = "run_id"
	saveKey = "save_id"
)

// Save names a save to which several ranks contribute a file each.
type Save struct {
	Run string // the run's random name
	ID  string // of the save, in its folder
}

// metadata is what a file of the save carries.
func (s Save) metadata() map[string]string { return map[string]string{runKey: s.Run, saveKey: s.ID} }

// SaveOf is the save that wrote the files of a scattered set. It is empty for files that do not name it, as older ones.
func SaveOf(s *Set) (save Save) {
	for _, r := range s.files {
		save = r.save()
	}
	return save
}

func (r *Reader) save() Save {
	return Save{Run: r.header.metadata[runKey], ID: r.header.metadata[saveKey]}
}

// oneSave refuses files of several saves: those of another run have the same names and shapes.
func (s *Set) oneSave() error {
	var first *Reader
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		r := s.files[file]
		if first == nil {
			first = r
		}
		if a, b := first.save(), r.save(); a != b {
			return fmt.Errorf("%s is of save %q of run %q, and %s of save %q of run %q: want files of one save",
				first.name, clip(a.ID), clip(a.Run), r.name, clip(b.ID), clip(b.Run))
		}
	}
	return nil
}

// WriteStored writes the file of one rank: parts made by StoredTensor, and which save they belong to.
func WriteStored(w io.Writer, parts []Tensor, save Save) error {
	return Write(w, parts, save.metadata())
}

// StoredTensor is a part of an array of the set, to be written into one of several files.
func StoredTensor(set string, dt dtype.DType, p placement.Placement, write func(w io.Writer) error) Tensor {
	return Tensor{Name: key(set, p), DType: dt, Shape: []int{p.Numel()}, Write: write}
}

// gather makes the array of its parts, whose files it opens.
func (s *Set) gather(fsys vfs.FS, dir, set, name string, from Scattered, want map[*Reader]int) (*Array, error) {
	rank, _ := rankOf(from.DType)
	el := elements[rank]
	size, err := el.size(from.Shape)
	if err != nil {
		return nil, err
	}
	a := &Array{Entry: Entry{Name: name, DType: from.DType, Raw: el.raw, Shape: from.Shape, End: size}}
	for _, p := range from.Stored {
		r, err := s.file(fsys, dir, p.File)
		if err != nil {
			return nil, err
		}
		key := key(set, p.Placement)
		e, ok := r.Lookup(key)
		switch {
		case !ok:
			return nil, fmt.Errorf("%s has no part %q", r.name, clip(key))
		case e.Raw != el.raw || !slices.Equal(e.Shape, []int{p.Numel()}):
			return nil, fmt.Errorf("%s: part %q is %s%v: want %s[%d]", r.name, clip(key), e.TypeName(), e.Shape,
				el.name(), p.Numel())
		}
		want[r]++
		bytes, err := a.inBytes(p.Placement)
		if err != nil {
			return nil, err
		}
		a.parts = append(a.parts, part{bytes, r.src, r.data + e.Begin})
		if !slices.Contains(a.files, r.name) {
			a.files = append(a.files, r.name)
		}
	}
	return a, nil
}

// file opens a file once.
func (s *Set) file(fsys vfs.FS, dir, file string) (*Reader, error) {
	if r := s.files[file]; r != nil {
		return r, nil
	}
	r, err := Open(fsys, filepath.Join(dir, file))
	if err == nil {
		s.files[file] = r
	}
	return r, err
}

// plainName refuses what is not the name of a file in the same folder.
func plainName(file string) error {
	if file == "" || file != filepath.Base(file) || strings.ContainsAny(file, `/\:`) || file == ".." || file == "." {
		return fmt.Errorf("%q is not the name of a file in the same folder", clip(file))
	}
	return nil
}
