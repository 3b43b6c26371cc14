// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/modelfiles"
)

// maxFile is the largest tokenizer.json, in bytes. That of a vocabulary of 256,000 tokens has 35 MB.
const maxFile = 64 << 20

// file is tokenizer.json, version 1.0, of HuggingFace's tokenizers library.
type file struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []fileAdded     `json:"added_tokens" max:"65536"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

// What a file may hold besides: lists of hardly any bytes take thirty times as many in memory.
const maxTokens = 1 << 21 // and merges

type fileAdded struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// Load reads HuggingFace's tokenizer.json. The error names the path and what is wrong
// with the file; see Read.
func Load(path string) (*Tokenizer, error) {
	data, err := modelfiles.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("tokenizers: %w%s", err, otherForm(path))
	}
	if err := foreign.Check(path, data); err != nil {
		return nil, fmt.Errorf("tokenizers: %w", err)
	}
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, path)
	}
	return t, nil
}

// otherForm says what to do about a tokenizer that lies beside path in another form.
func otherForm(path string) string {
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(filepath.Dir(path), name))
		return err == nil
	}
	switch {
	case has("vocab.json") && has("merges.txt"):
		return "; there are vocab.json and merges.txt: in Python, " +
			"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes tokenizer.json"
	case has("vocab.txt"):
		return "; there is vocab.txt, of WordPiece: in Python, " +
			"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes tokenizer.json"
	case has("tokenizer.model"), has("spiece.model"), has("sentencepiece.bpe.model"):
		return "; there is a tokenizer of SentencePiece: in Python, " +
			"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes tokenizer.json"
	}
	return ""
}

// Read reads a tokenizer in the format of HuggingFace's tokenizer.json, version 1.0. Truncation and padding, which a
// file has if its tokenizer was used with them last, are kept and not applied: as in transformers, the caller decides
// about both. WriteTo writes the file back byte for byte.
//
// A component or setting that this package does not have, or a key that it does not know, is an error. It names all
// that the file has, the greatest obstacle first.
func Read(r io.Reader) (*Tokenizer, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("tokenizers: reading tokenizer.json: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("tokenizers: tokenizer.json has more than %d bytes", maxFile)
	}
	return parse(data)
}

func parse(data []byte) (*Tokenizer, error) {
	f := file{Version: "1.0"}
	if err := jsonfile.Strict(data, &f); err != nil {
		return nil, fmt.Errorf("tokenizers: tokenizer.json: %w", err)
	}
	t, err := f.build()
	if err != nil {
		return nil, err
	}
	t.file = data
	return t, nil
}

// strict decodes a part of the file and refuses unknown keys.
func strict(part []byte, to any) error {
	return jsonfile.Options{KnownKeys: true, Checked: true}.Unmarshal(part, to)
}

// loose is strict with any keys.
func loose(part []byte, to any) error { return jsonfile.Options{Checked: true}.Unmarshal(part, to) }

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// parseVocab reads the object {token: id}.
func parseVocab(raw json.RawMessage) (map[string]int32, error) {
	ids := map[string]int32{}
	if err := strict(raw, &ids); err != nil {
		return nil, err
	}
	switch {
	case len(ids) == 0:
		return nil, errors.New("it has no tokens")
	case len(ids) > maxTokens:
		return nil, fmt.Errorf("it has more than %d tokens", maxTokens)
	}
	for token, id := range ids {
		if id < 0 || id > maxID {
			return nil, fmt.Errorf("token %q has id %d: want 0 to %d", token, id, maxID)
		}
	}
	return ids, nil
}

// added sorts the added tokens, which check has seen, by id.
func (f *file) added() []AddedToken {
	var added []AddedToken
	for _, a := range f.AddedTokens {
		added = append(added, AddedToken{ID: int32(a.ID), Content: a.Content, Special: a.Special,
			Normalized: a.Normalized, SingleWord: a.SingleWord, LStrip: a.LStrip, RStrip: a.RStrip})
	}
	slices.SortStableFunc(added, func(a, b AddedToken) int { return cmp.Compare(a.ID, b.ID) })
	return added
}

// Save writes HuggingFace's tokenizer.json to path. It replaces the file in place: a checkpoint, which must be all or
// nothing, writes into its own folder first.
func (t *Tokenizer) Save(path string) error {
	var b bytes.Buffer
	if _, err := t.WriteTo(&b); err != nil {
		return err
	}
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		return fmt.Errorf("tokenizers: %w", err)
	}
	return nil
}

// WriteTo writes the tokenizer in the format of tokenizer.json, which Python's
// tokenizers and transformers load, and which Read reads back. What was read is written byte for byte, unless
// BeginWith or WithTokens changed it.
func (t *Tokenizer) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(t.file)
	if err != nil {
		err = fmt.Errorf("tokenizers: writing tokenizer.json: %w", err)
	}
	return int64(n), err
}

// format writes the file as HuggingFace's tokenizers do.
func (f *file) format() json.RawMessage {
	var out bytes.Buffer
	if err := json.Indent(&out, encodeJSON(f), "", "  "); err != nil {
		panic(fmt.Sprintf("tokenizers: encoding tokenizer.json: %v", err)) // it was made here
	}
	return out.Bytes()
}

// trainedFile is the file of a byte-level BPE of the given vocabulary, merges by rank and special tokens.
func trainedFile(vocab []string, merges []pair, special []string) *file {
	null := json.RawMessage("null")
	level := fileByteLevel{Type: "ByteLevel", TrimOffsets: true, UseRegex: true}
	f := &file{
		Version: "1.0", Truncation: null, Padding: null, Normalizer: null, AddedTokens: []fileAdded{},
		PreTokenizer: encodeJSON(level), PostProcessor: encodeJSON(level),
	}
	level.AddPrefixSpace = true // means nothing to a decoder; HuggingFace's has it
	f.Decoder = encodeJSON(level)
	for id, s := range special {
		f.AddedTokens = append(f.AddedTokens, fileAdded{ID: int64(id), Content: s, Special: true})
	}
	m := fileModel{Type: "BPE", Vocab: vocabJSON(vocab), Merges: []fileMerge{}}
	for _, p := range merges {
		m.Merges = append(m.Merges, fileMerge{vocab[p.left()], vocab[p.right()]})
	}
	f.Model = encodeJSON(m)
	return f
}

// vocabJSON lists a vocabulary by id, which a Go map cannot.
func vocabJSON(vocab []string) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for id, token := range vocab {
		if id > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%d", encodeJSON(token), id)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// encodeJSON is json.Marshal without HTML escapes; the values given to it always have
// an encoding.
func encodeJSON(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("tokenizers: encoding %T: %v", v, err))
	}
	return bytes.TrimSpace(b.Bytes())
}
