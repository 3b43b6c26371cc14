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
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// PiecesFile is the name of the file that says where the pieces of arrays lie that several ranks have written.
const PiecesFile = "pieces.json"

// piecesVersion is the version of PiecesFile.
const piecesVersion = 1

// What a PiecesFile may hold.
const (
	maxPiecesFile = 256 << 20 // bytes
	maxPieces     = 4_000_000 // in all
	maxSets       = 100
)

// Pieced is an array that lies in pieces.
type Pieced struct {
	DType dtype.DType
	Shape []int
	// Places are where the elements are, in their order; none for an array without elements.
	Places []Place
}

// Place is where the elements Lo to Hi, exclusively, of an array's flat order lie: File has them as an array of one dim
// named by PieceKey.
type Place struct {
	Lo, Hi int
	File   string
}

// Pieces is what a PiecesFile says: arrays by set, as "model" or "optimizer", and by name.
type Pieces map[string]map[string]Pieced

// PieceKey is the name under which a file holds a piece.
func PieceKey(set, name string, lo, hi int) string {
	return fmt.Sprintf("%s/%s[%d:%d]", set, name, lo, hi)
}

// Check returns an error unless the places of each array follow each other without gaps and overlaps from its first
// element to its last.
func (p Pieces) Check() error {
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

func (a Pieced) check() error {
	rank, ok := rankOf(a.DType)
	if !ok {
		return fmt.Errorf("dtype %v cannot be written", a.DType)
	}
	size, err := elements[rank].size(a.Shape)
	if err != nil {
		return err
	}
	n, at := int(size/int64(elements[rank].bits/8)), 0
	for _, p := range a.Places {
		switch {
		case p.Hi <= p.Lo || p.Lo < 0 || p.Hi > n:
			return fmt.Errorf("[%d, %d) is no piece of %d elements", p.Lo, p.Hi, n)
		case p.Lo > at:
			return fmt.Errorf("nobody has the elements [%d, %d) of %d", at, p.Lo, n)
		case p.Lo < at:
			return fmt.Errorf("the elements [%d, %d) are in two pieces", p.Lo, min(at, p.Hi))
		}
		if err := plainName(p.File); err != nil {
			return err
		}
		at = p.Hi
	}
	if at < n {
		return fmt.Errorf("nobody has the elements [%d, %d) of %d", at, n, n)
	}
	return nil
}

// Encode returns the contents of the PiecesFile, a line for each array.
func (p Pieces) Encode() ([]byte, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"format_version\": %d,\n  \"tensors\": {", piecesVersion)
	for i, set := range slices.Sorted(maps.Keys(p)) {
		b.WriteString(comma(i) + "\n    " + quote(set) + ": {")
		for i, name := range slices.Sorted(maps.Keys(p[set])) {
			a := p[set][name]
			rank, _ := rankOf(a.DType)
			fmt.Fprintf(&b, "%s\n      %s: {\"dtype\": \"%s\", \"shape\": [%s], \"pieces\": [", comma(i), quote(name),
				elements[rank].raw, dims(a.Shape))
			for i, at := range a.Places {
				fmt.Fprintf(&b, "%s[%d,%d,%s]", comma(i), at.Lo, at.Hi, quote(at.File))
			}
			b.WriteString("]}")
		}
		b.WriteString("\n    }")
	}
	b.WriteString("\n  }\n}\n")
	if b.Len() > maxPiecesFile {
		return nil, fmt.Errorf("%s of %d bytes: want at most %d", PiecesFile, b.Len(), maxPiecesFile)
	}
	return b.Bytes(), nil
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

// ReadPieces reads and checks the PiecesFile of a folder. The error matches fs.ErrNotExist if there is none.
func ReadPieces(fsys vfs.FS, dir string) (Pieces, error) {
	name := filepath.Join(dir, PiecesFile)
	text, err := vfs.ReadFile(fsys, name, maxPiecesFile)
	if err != nil {
		return nil, err
	}
	p, err := parsePieces(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func parsePieces(text []byte) (Pieces, error) {
	p := piecesParser{parser: parser{dec: json.NewDecoder(bytes.NewReader(text))}}
	p.dec.UseNumber()
	var sets Pieces
	version := ""
	err := p.object(PiecesFile, func(key string) error {
		switch key {
		case "format_version":
			t, err := p.token()
			if _, ok := t.(json.Number); err == nil && !ok {
				return fmt.Errorf("format_version: got %s, want a number", clip(fmt.Sprint(t)))
			}
			version = fmt.Sprint(t)
			return err
		case "tensors":
			sets = Pieces{}
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
	case version != strconv.Itoa(piecesVersion):
		return nil, fmt.Errorf("format version %s: this program reads version %d", clip(version), piecesVersion)
	case sets == nil:
		return nil, errors.New("no tensors")
	case len(bytes.TrimSpace(text[p.dec.InputOffset():])) > 0:
		return nil, errors.New("there is text after the JSON object")
	}
	return sets, sets.Check()
}

// piecesParser counts what it has read.
type piecesParser struct {
	parser
	arrays, pieces int
}

func (p *piecesParser) set(set string) (map[string]Pieced, error) {
	arrays := map[string]Pieced{}
	return arrays, p.object(set, func(name string) (err error) {
		if p.arrays++; p.arrays > maxEntries {
			return fmt.Errorf("more than %d tensors", maxEntries)
		}
		arrays[name], err = p.pieced(fmt.Sprintf("tensor %q of %s", clip(name), clip(set)))
		return err
	})
}

func (p *piecesParser) pieced(what string) (a Pieced, err error) {
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
			return p.places(what, &a)
		}
		return fmt.Errorf("%s: unknown key %q", what, clip(key))
	})
	if err == nil && (!shaped || a.DType == dtype.Invalid) {
		err = fmt.Errorf("%s: want a dtype and a shape", what)
	}
	return a, err
}

func (p *piecesParser) places(what string, a *Pieced) error {
	if err := p.delim(what, '['); err != nil {
		return err
	}
	for p.dec.More() {
		if p.pieces++; p.pieces > maxPieces {
			return fmt.Errorf("more than %d pieces", maxPieces)
		}
		var place [3]any
		if err := p.delim(what+": piece", '['); err != nil {
			return err
		}
		for i := range place {
			t, err := p.token()
			if err != nil {
				return err
			}
			place[i] = t
		}
		lo, okLo := number(place[0])
		hi, okHi := number(place[1])
		file, okFile := place[2].(string)
		if !okLo || !okHi || !okFile {
			return fmt.Errorf("%s: piece %s: want [from, to, file]", what, clip(fmt.Sprint(place)))
		}
		if err := p.delim(what+": piece", ']'); err != nil {
			return err
		}
		a.Places = append(a.Places, Place{lo, hi, file})
	}
	return p.delim(what, ']')
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

// openPieces opens the arrays of the set that lie in pieces.
func (s *Set) openPieces(fsys vfs.FS, dir, set string) error {
	index, err := ReadPieces(fsys, dir)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, PiecesFile)
	arrays, ok := index[set]
	if !ok {
		return fmt.Errorf("%s has no tensors of %q: %w", name, set, fs.ErrNotExist)
	}
	s.indexed, s.pieces = true, true
	want := map[*Reader]int{} // pieces by file
	for _, array := range slices.Sorted(maps.Keys(arrays)) {
		a, err := s.pieced(fsys, dir, set, array, arrays[array], want)
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
			return fmt.Errorf("%s names %d pieces of %s in %s, which has %d", name, want[r], set, r.name, have)
		}
	}
	return s.oneSave()
}

// The metadata that tells a file of pieces which save it belongs to.
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

// SaveOf is the save that wrote a set's files of pieces. It is empty for files that do not name it, as older ones.
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

// WritePieces writes the file of one rank: pieces made by PieceWriter, and which save they belong to.
func WritePieces(w io.Writer, pieces []Tensor, save Save) error {
	return Write(w, pieces, save.metadata())
}

// pieced makes the array of its pieces, whose files it opens.
func (s *Set) pieced(fsys vfs.FS, dir, set, name string, p Pieced, want map[*Reader]int) (*Array, error) {
	rank, _ := rankOf(p.DType)
	el := elements[rank]
	a := &Array{Entry: Entry{Name: name, DType: p.DType, Raw: el.raw, Shape: p.Shape}}
	var runs segments
	for _, at := range p.Places {
		r, err := s.file(fsys, dir, at.File)
		if err != nil {
			return nil, err
		}
		key := PieceKey(set, name, at.Lo, at.Hi)
		e, ok := r.Lookup(key)
		switch {
		case !ok:
			return nil, fmt.Errorf("%s has no piece %q", r.name, clip(key))
		case e.Raw != el.raw || !slices.Equal(e.Shape, []int{at.Hi - at.Lo}):
			return nil, fmt.Errorf("%s: piece %q is %s%v: want %s[%d]", r.name, clip(key), e.TypeName(), e.Shape,
				el.name(), at.Hi-at.Lo)
		}
		want[r]++
		runs = append(runs, segment{begin: a.End, end: a.End + e.Bytes(), src: r.src, at: r.data + e.Begin})
		a.End += e.Bytes()
		if !slices.Contains(a.files, r) {
			a.files = append(a.files, r)
		}
	}
	a.src = runs
	if len(runs) == 0 {
		a.src = bytes.NewReader(nil)
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

// PieceWriter is a piece to be written into the file at place.
func PieceWriter(set, name string, dt dtype.DType, lo, hi int, write func(w io.Writer) error) Tensor {
	return Tensor{Name: PieceKey(set, name, lo, hi), DType: dt, Shape: []int{hi - lo}, Write: write}
}
