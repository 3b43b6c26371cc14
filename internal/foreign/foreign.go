// SPDX-License-Identifier: Apache-2.0

// Package foreign recognizes unsupported file formats by their first bytes. Readers call [Check] so that a compressed
// table, a pickle or a pointer of Git LFS gives a useful error instead of "invalid text at byte N".
package foreign

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// HeadSize is the number of bytes that Check looks at: those up to the signature of a tar archive.
const HeadSize = 512

// format is a format by its first bytes.
type format struct {
	at     int // where the signature is
	magic  string
	name   string // completes "FILE is …"
	advice string
}

// What to do.
const (
	toLines = `in Python, pandas.read_%s(FILE).to_json("rows.jsonl", orient="records", lines=True) writes JSON Lines`
	never   = "it is a program that Python runs when it reads it and is never read here; "
	toTable = never + `in Python, pandas.read_pickle(FILE).to_json("rows.jsonl", orient="records", lines=True) writes ` +
		"a table as JSON Lines"
	toWeights = never + "in Python, AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER), with the class of " +
		"the model, writes model.safetensors"
)

// formats are in the order in which they are tried.
var formats = []format{
	{0, "version https://git-lfs.github.com/spec/", "a pointer of Git LFS, not the file",
		"git lfs pull in its repository fetches the file"},
	{0, "\x28\xb5\x2f\xfd", "compressed by zstd", "add .zst to its name"},
	{0, "\xfd7zXZ\x00", "compressed by xz", "decompress it with xz -d, or compress it with gzip or zstd"},
	{0, "BZh", "compressed by bzip2", "decompress it with bzip2 -d, or compress it with gzip or zstd"},
	{0, "\x04\x22\x4d\x18", "compressed by lz4", "decompress it with lz4 -d, or compress it with gzip or zstd"},
	{0, "\x1f\x8b", "compressed by gzip", "add .gz to its name"},
	{0, "7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"},
	{257, "ustar", "a tar archive", "unpack it"},
	{0, "PAR1", "a Parquet file", "what reads tables and rows reads it, if its name ends in .parquet"},
	{0, "ARROW1\x00\x00", "an Arrow file", fmt.Sprintf(toLines, "feather")},
	{0, "\xff\xff\xff\xff", "an Arrow stream, as datasets.save_to_disk writes",
		`in Python, datasets.load_from_disk(FOLDER).to_json("rows.jsonl") writes JSON Lines`},
	{0, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", "a pickle of PyTorch", toWeights},
	{0, "\x89HDF\r\n\x1a\n", "an HDF5 file", "write it as safetensors, CSV or JSON Lines"},
	{0, "GGUF", "a GGUF file", "what loads models reads it (models.LoadPretrained)"},
	{0, "\x93NUMPY", "an array of NumPy", "write it as safetensors or CSV"},
	{0, "SQLite format 3\x00", "a database of SQLite", fmt.Sprintf(toLines, "sql")},
	{0, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a file of an old Office program", "save it as CSV in UTF-8"},
	{0, "%PDF-", "a PDF", "extract its text"},
	{0, "\xff\xfe", "UTF-16, not UTF-8", "convert it with iconv -f UTF-16 -t UTF-8"},
	{0, "\xfe\xff", "UTF-16, not UTF-8", "convert it with iconv -f UTF-16 -t UTF-8"},
}

// Error says which format a file has.
type Error struct{ Path, Name, Advice string }

// Error names the file, its format and what to do.
func (e *Error) Error() string { return fmt.Sprintf("%s is %s: %s", e.Path, e.Name, e.Advice) }

// Check returns an *Error if a file that begins with head, of HeadSize bytes or what it has, is of one of the formats.
// A text that begins with the name of one is none.
func Check(path string, head []byte) error {
	head = head[:min(len(head), HeadSize)]
	known := formats
	if !bytes.ContainsFunc(head, binary) {
		known = formats[:1] // a pointer is text
	}
	for _, f := range known {
		if len(head) >= f.at && bytes.HasPrefix(head[f.at:], []byte(f.magic)) {
			return &Error{path, f.name, f.advice}
		}
	}
	switch {
	case len(head) > 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5: // and the protocol
		return &Error{path, "a pickle of Python", toTable}
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		return zip(path, head)
	}
	return nil
}

// binary reports whether a character is in no text of ASCII.
func binary(r rune) bool { return r < '\t' || r > '\r' && r < ' ' || r > '~' }

// zip tells the files that are zip archives by the name of their first entry.
func zip(path string, head []byte) *Error {
	name := head[min(30, len(head)):]
	switch {
	case bytes.Contains(name, []byte("data.pkl")):
		return &Error{path, "a pickle of PyTorch", toWeights}
	case bytes.HasPrefix(name, []byte("[Content_Types].xml")), bytes.HasPrefix(name, []byte("xl/")),
		bytes.HasPrefix(name, []byte("_rels/")):
		return &Error{path, "a workbook of Excel", "save it as CSV in UTF-8"}
	case bytes.Contains(name, []byte(".npy")):
		return &Error{path, "an archive of NumPy", "write it as safetensors or CSV"}
	}
	return &Error{path, "a zip archive", "unpack it"}
}

// CheckReader is Check for a file that can be read anywhere. What cannot be read is no fault of the format.
func CheckReader(path string, r io.ReaderAt) error {
	head := make([]byte, HeadSize)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return Check(path, head[:n])
}
