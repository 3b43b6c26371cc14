// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// maxFile is the largest tokenizer.json, in bytes. That of a vocabulary of 256,000 tokens has 35 MB.
const maxFile = 64 << 20

// file is tokenizer.json, version 1.0, of HuggingFace's tokenizers library.
type file struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   addedList       `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

// What a file may hold besides: lists of hardly any bytes take thirty times as many in memory.
const (
	maxTokens = 1 << 21 // and merges
	maxAdded  = 1 << 16
)

type (
	addedList []fileAdded
	mergeList []fileMerge
)

// UnmarshalJSON reads the list up to maxAdded.
func (l *addedList) UnmarshalJSON(data []byte) (err error) {
	*l, err = decodeList[fileAdded](data, maxAdded)
	return err
}

// UnmarshalJSON reads the list up to maxTokens.
func (l *mergeList) UnmarshalJSON(data []byte) (err error) {
	*l, err = decodeList[fileMerge](data, maxTokens)
	return err
}

// decodeList reads a list of at most so many values, or null.
func decodeList[T any](data []byte, most int) ([]T, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	start, err := d.Token()
	switch {
	case err != nil:
		return nil, err
	case start == nil:
		return nil, nil
	case start != json.Delim('['):
		return nil, fmt.Errorf("it is %v: want a list", start)
	}
	list := []T{}
	for d.More() {
		if len(list) == most {
			return nil, fmt.Errorf("a list has more than %d values", most)
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

type fileAdded struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// fileByteLevel is the ByteLevel component, which occurs as pre-tokenizer, decoder and
// post-processor; missing keys have their default, true.
type fileByteLevel struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"`
	UseRegex       bool   `json:"use_regex"`
}

type fileModel struct {
	Type                    string          `json:"type"`
	Dropout                 *float64        `json:"dropout"`
	UnkToken                *string         `json:"unk_token"`
	ContinuingSubwordPrefix *string         `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string         `json:"end_of_word_suffix"`
	FuseUnk                 bool            `json:"fuse_unk"`
	ByteFallback            bool            `json:"byte_fallback"`
	IgnoreMerges            bool            `json:"ignore_merges"`
	Vocab                   json.RawMessage `json:"vocab"`
	Merges                  mergeList       `json:"merges"`
}

// fileMerge is ["a", "b"], or "a b" in older files.
type fileMerge [2]string

// UnmarshalJSON implements json.Unmarshaler.
func (m *fileMerge) UnmarshalJSON(data []byte) error {
	var line string
	if json.Unmarshal(data, &line) == nil {
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return fmt.Errorf("merge %q is not two tokens with a space between", line)
		}
		*m = fileMerge{left, right}
		return nil
	}
	var list []string
	if err := json.Unmarshal(data, &list); err != nil || len(list) != 2 {
		return fmt.Errorf("merge %s is not a list of two tokens", data)
	}
	*m = fileMerge{list[0], list[1]}
	return nil
}

// Load reads HuggingFace's tokenizer.json. The error names the path and what is wrong
// with the file; see Read.
func Load(path string) (*BPE, error) {
	data, err := vfs.ReadFile(vfs.OS, path, maxFile)
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
		return "; there is vocab.txt, of WordPiece, which is not supported: want byte-level BPE"
	case has("tokenizer.model"), has("spiece.model"), has("sentencepiece.bpe.model"):
		return "; there is a tokenizer of SentencePiece, which is not supported: want byte-level BPE"
	}
	return ""
}

// Read reads a tokenizer in the format of HuggingFace's tokenizer.json, version 1.0: a byte-level BPE model, GPT-2's
// way of splitting a text, added tokens, and a post-processor that puts tokens around a text or none. Components that
// change no id, as an empty Sequence, are accepted in any number. So are truncation and padding, which a file has if
// its tokenizer was used with them last: as in transformers they do not apply, since the caller of Encode decides about
// both. All of these are written back as they were.
//
// A component or setting that this package does not have, or a key that it does not know, is an error. It names all
// that the file has, the greatest obstacle first.
func Read(r io.Reader) (*BPE, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("tokenizers: reading tokenizer.json: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("tokenizers: tokenizer.json has more than %d bytes", maxFile)
	}
	return parse(data)
}

func parse(data []byte) (*BPE, error) {
	if jsontext.LoneSurrogate(data) {
		return nil, errors.New(
			`tokenizers: tokenizer.json has an escape \uD800 to \uDFFF that is not half of a pair`)
	}
	f := file{Version: "1.0"}
	if err := strict(data, &f); err != nil {
		return nil, fmt.Errorf("tokenizers: tokenizer.json: %w", err)
	}
	m, err := f.check()
	if err != nil {
		return nil, fmt.Errorf("tokenizers: tokenizer.json: %w", err)
	}
	vocab, ids, err := parseVocab(m.Vocab, maxTokens)
	if err != nil {
		return nil, fmt.Errorf("tokenizers: tokenizer.json: vocab: %w", err)
	}
	merges := make([]pair, len(m.Merges))
	for rank, tokens := range m.Merges {
		left, okLeft := ids[tokens[0]]
		right, okRight := ids[tokens[1]]
		if !okLeft || !okRight {
			return nil,
				fmt.Errorf("tokenizers: tokenizer.json: merge %d (%q %q) uses tokens that are not in the vocabulary",
					rank, tokens[0], tokens[1])
		}
		merges[rank] = makePair(left, right)
	}
	t, err := newBPE(vocab, merges, f.added())
	if err != nil {
		return nil, err
	}
	t.keep(f, m)
	if t.postprocess, err = parsePostprocess("post_processor", f.PostProcessor, t.VocabSize()); err != nil {
		return nil, fmt.Errorf("tokenizers: tokenizer.json: %w", err)
	}
	return t, nil
}

// strict decodes JSON and refuses unknown keys and trailing data.
func strict(data []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("an empty text: want JSON")
		}
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is text after the end of the JSON object")
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// parseVocab reads the object {token: id} into a list by id and its inverse.
func parseVocab(raw json.RawMessage, most int) ([]string, map[string]int32, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, nil, errors.New("it is not an object of tokens and their ids")
	}
	ids := map[string]int32{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, nil, err
		}
		token := key.(string) // the keys of an object are strings, or Token fails
		if len(ids) == most {
			return nil, nil, fmt.Errorf("it has more than %d tokens", most)
		}
		var id int64
		if err := d.Decode(&id); err != nil {
			return nil, nil, fmt.Errorf("token %q: %w", token, err)
		}
		if _, ok := ids[token]; ok {
			return nil, nil, fmt.Errorf("token %q is given twice", token)
		}
		if id < 0 || id > math.MaxInt32 {
			return nil, nil, fmt.Errorf("token %q has id %d: want 0 or more", token, id)
		}
		ids[token] = int32(id)
	}
	vocab := make([]string, len(ids))
	taken := make([]bool, len(ids))
	for token, id := range ids {
		if int(id) >= len(ids) || taken[id] {
			return nil, nil, fmt.Errorf("token %q has id %d; %d tokens must have the ids 0 to %d, each once", token, id,
				len(ids), len(ids)-1)
		}
		vocab[id], taken[id] = token, true
	}
	return vocab, ids, nil
}

// added sorts the added tokens, which check has seen, by id.
func (f *file) added() []AddedToken {
	var added []AddedToken
	for _, a := range f.AddedTokens {
		added = append(added, AddedToken{ID: int32(a.ID), Content: a.Content, Special: a.Special,
			Normalized: a.Normalized})
	}
	slices.SortStableFunc(added, func(a, b AddedToken) int { return cmp.Compare(a.ID, b.ID) })
	return added
}

// Save writes HuggingFace's tokenizer.json to path. It replaces the file in place:
// a checkpoint, which must be all or nothing, writes into a folder of its own first.
func (t *BPE) Save(path string) error {
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
// tokenizers and transformers load, and which Read reads back. The same tokenizer gives
// the same bytes.
func (t *BPE) WriteTo(w io.Writer) (int64, error) {
	null := json.RawMessage("null")
	level := fileByteLevel{Type: "ByteLevel", TrimOffsets: true, UseRegex: true}
	f := file{
		Version: "1.0", Truncation: null, Padding: null, Normalizer: null, AddedTokens: addedList{},
		PreTokenizer: encodeJSON(level), PostProcessor: encodeJSON(level),
	}
	level.AddPrefixSpace = true // means nothing to a decoder; HuggingFace's has it
	f.Decoder = encodeJSON(level)
	m := fileModel{Type: "BPE", Vocab: t.vocabJSON(), Merges: mergeList{}}
	t.kept.restore(&f, &m)
	if t.postprocess.raw != nil {
		f.PostProcessor = t.postprocess.raw
	}
	for _, a := range t.added {
		f.AddedTokens = append(f.AddedTokens,
			fileAdded{ID: int64(a.ID), Content: a.Content, Normalized: a.Normalized, Special: a.Special})
	}
	for _, p := range t.merges {
		m.Merges = append(m.Merges, fileMerge{t.spelled[p.left()], t.spelled[p.right()]})
	}
	f.Model = encodeJSON(m)
	var out bytes.Buffer
	if err := json.Indent(&out, encodeJSON(f), "", "  "); err != nil {
		return 0, fmt.Errorf("tokenizers: writing tokenizer.json: %w", err)
	}
	n, err := w.Write(out.Bytes())
	if err != nil {
		err = fmt.Errorf("tokenizers: writing tokenizer.json: %w", err)
	}
	return int64(n), err
}

// vocabJSON lists the model's vocabulary by id, which a Go map cannot.
func (t *BPE) vocabJSON() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for id, token := range t.spelled[:t.vocab] {
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
