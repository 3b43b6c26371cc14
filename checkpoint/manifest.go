// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// formatVersion is the version of the manifest that this package writes and reads.
const formatVersion = 1

// ManifestFile is the name of the manifest in a checkpoint's folder.
const ManifestFile = "manifest.json"

// maxManifest bounds the size of a manifest or pointer file, in bytes.
const maxManifest = 16 << 20

// Manifest lists the files of a checkpoint. It is written after all of them.
type Manifest struct {
	FormatVersion int    `json:"format_version"`
	RunID         string `json:"run_id"`  // which run wrote it
	SaveID        int64  `json:"save_id"` // grows with every save into the folder, from 1
	Step          int64  `json:"step"`    // optimizer steps done
	Files         []File `json:"files"`   // in the order of writing
	// SHA256 is the hash of the manifest's own encoding with this field empty.
	SHA256 string `json:"sha256"`
}

// File is one file of a checkpoint.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`   // in bytes
	SHA256 string `json:"sha256"` // lower-case hexadecimal
}

// CorruptError says which file of a checkpoint is damaged and how.
type CorruptError struct {
	Path    string
	Problem string
	foreign bool // a folder that another program wrote
}

// Error implements error.
func (e *CorruptError) Error() string { return e.Path + ": " + e.Problem }

func corrupt(path, format string, args ...any) error {
	return &CorruptError{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// sum is what SHA256 has to be.
func (m Manifest) sum() (string, error) {
	m.SHA256 = ""
	text, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:]), nil
}

// encode seals m with its hash and returns the file's contents.
func (m *Manifest) encode() (text []byte, err error) {
	if m.SHA256, err = m.sum(); err != nil {
		return nil, err
	}
	text, err = json.MarshalIndent(m, "", "  ")
	return append(text, '\n'), err
}

// readManifest reads and checks the manifest of the folder, not the files it lists.
func readManifest(fsys vfs.FS, dir string) (Manifest, error) {
	path := filepath.Join(dir, ManifestFile)
	text, err := vfs.ReadFile(fsys, path, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		what, foreign := withoutManifest(fsys, dir)
		return Manifest{}, &CorruptError{Path: path, Problem: "missing: " + what, foreign: foreign}
	}
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := decodeVersioned(text, &m); err != nil {
		return Manifest{}, corrupt(path, "%v", err)
	}
	want, err := m.sum()
	switch {
	case err != nil:
		return Manifest{}, err
	case want != m.SHA256:
		return Manifest{}, corrupt(path, "damaged: its own hash is %q, it says %q", want, m.SHA256)
	}
	for _, f := range m.Files {
		if err := checkName(f.Name); err != nil {
			return Manifest{}, corrupt(path, "%v", err)
		}
	}
	return m, nil
}

// withoutManifest says what a folder is that has no manifest, and whether another program wrote it.
func withoutManifest(fsys vfs.FS, dir string) (what string, foreign bool) {
	for _, name := range []string{"training_args.bin", "optimizer.pt", "scheduler.pt"} {
		if _, err := fsys.Stat(filepath.Join(dir, name)); err == nil {
			return "this is a checkpoint of transformers (" + name + "), whose training cannot be resumed here: want " +
				"a new run that starts from its weights (--model_name_or_path, models.LoadPretrained)", true
		}
	}
	return "this is not a complete checkpoint of Lockstep", false
}

// decodeVersioned reads strict JSON of the known version: another version is told before
// the fields that it may have more.
func decodeVersioned(text []byte, v any) error {
	var head struct {
		FormatVersion int `json:"format_version"`
	}
	if len(text) == 0 {
		return errors.New("an empty file: want JSON")
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if head.FormatVersion != formatVersion {
		return fmt.Errorf("format version %d: this program reads version %d", head.FormatVersion, formatVersion)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more text after the JSON object: want the object alone")
	}
	return nil
}

// checkName refuses what is not a plain file name on every system.
func checkName(name string) error {
	at := strings.IndexFunc(name, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("._-", r)
	})
	switch {
	case name == "" || at >= 0 || name[0] == '.' || strings.HasSuffix(name, "."):
		return fmt.Errorf("part %q: want a file name of letters, digits, '.', '_' and '-', no '.' at either end", name)
	case strings.EqualFold(name, ManifestFile) || strings.EqualFold(name, LatestFile):
		return fmt.Errorf("part %q: the name is taken", name)
	case !filepath.IsLocal(name):
		return fmt.Errorf("part %q: the name is reserved by the system", name)
	}
	return nil
}
