// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/text"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/examples/internal/tokens"
	"github.com/lockstep-ml/lockstep/program"
)

// endOfText stands between documents.
const endOfText = "<|endoftext|>"

// corpus is the text of a run: documents for training and held-out ones.
type corpus struct {
	train, eval []text.Document
	ends        []int // tokens by which the texts of a saved model end
}

// String says how much text there is.
func (c *corpus) String() string {
	s := program.Count(len(c.train), "document") + ", " + sizeText(size(c.train))
	if len(c.eval) > 0 {
		s += "; held out " + program.Count(len(c.eval), "document") + ", " + sizeText(size(c.eval))
	}
	if columns := c.columns(); len(columns) > 0 {
		s += ", of column " + strings.Join(columns, ", ")
	}
	return s
}

// columns are the columns of files with rows that the text comes from.
func (c *corpus) columns() (names []string) {
	for _, docs := range [][]text.Document{c.train, c.eval} {
		for _, d := range docs {
			if d.Column != "" && !slices.Contains(names, d.Column) {
				names = append(names, d.Column)
			}
		}
	}
	return names
}

// readCorpus reads the user's files, or the functions of the Go standard library. Without a file to evaluate on, a
// share of the training text is held out if evaluating says so. p shows how far it is; it may be nil.
func readCorpus(p *program.Process, d *DataArguments, training, evaluating bool) (*corpus, error) {
	trainFiles, evalFiles, err := listFiles(d)
	if err != nil {
		return nil, err
	}
	read := func(files []string, o text.Options) ([]text.Document, error) {
		if !d.own() {
			return readFunctions(p, files)
		}
		return readFiles(p, files, o)
	}
	c := &corpus{}
	split := evaluating && len(evalFiles) == 0
	if training || split {
		if c.train, err = read(trainFiles, text.Options{Column: d.TextColumn}); err != nil {
			return nil, err
		}
	}
	if split {
		c.train, c.eval, err = holdOut(c.train, trainFiles, d.ValidationSplitPercentage)
		return c, err
	}
	// A byte-level tokenizer reads anything: an evaluation may be of bytes that are no text.
	c.eval, err = read(evalFiles, text.Options{Column: d.TextColumn, AnyBytes: !training})
	return c, err
}

// readFiles reads the documents of files, and shows how many bytes of them are read: of a compressed file at the end of
// it.
func readFiles(p *program.Process, files []string, o text.Options) (docs []text.Document, err error) {
	sizes, total := make(map[string]int64, len(files)), int64(0)
	for _, f := range files {
		sizes[f], _ = fileSize(f) // whoever reads it reports the error
		total += sizes[f]
	}
	phase := p.Phase("reading text", total, callbacks.Bytes)
	defer phase.Close()
	var before, here int64 // bytes of files that are read, and of the one that is being read
	path := ""
	for d, err := range text.Read(files, o) {
		if err != nil {
			return nil, err
		}
		if d.Path != path {
			before, here, path = before+sizes[path], 0, d.Path
		}
		here = min(here+int64(len(d.Text)), sizes[path])
		phase.Set(before + here)
		docs = append(docs, d)
	}
	return docs, nil
}

// fileSize is the size of a file in bytes.
func fileSize(name string) (int64, error) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// listFiles says which files train and which are to evaluate on; none are if the user names none.
func listFiles(d *DataArguments) (train, eval []string, err error) {
	if !d.own() {
		root, err := text.GoRoot()
		if err != nil {
			return nil, nil, err
		}
		if train, eval, err = text.GoSource(root); err != nil {
			return nil, nil, err
		}
		train, eval = public(root, train), public(root, eval)
		eval, err = limitBytes(eval, int64(d.MaxEvalBytes))
		return train, eval, err
	}
	if train, err = expand(d.TrainFile); err != nil {
		return nil, nil, err
	}
	if eval, err = expand(d.ValidationFile); err != nil {
		return nil, nil, err
	}
	if err := requireDisjoint(train, eval); err != nil {
		return nil, nil, err
	}
	return train, eval, nil
}

// requireDisjoint refuses files in both splits, by whatever path they are named.
func requireDisjoint(train, eval []string) error {
	trained := make(map[string]bool, len(train))
	for _, f := range train {
		trained[canonical(f)] = true
	}
	for _, f := range eval {
		if trained[canonical(f)] {
			return fmt.Errorf("%s is both in train_file and in validation_file: want different files",
				f)
		}
	}
	return nil
}

// canonical is the one name of a file that has several: absolute, without symbolic links.
func canonical(file string) string {
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	return file
}

func expand(patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	return text.Expand(patterns...)
}

// holdOut takes percent of the text out of the training text: of several files, files that the hash of their path
// chooses; of one file with several documents, the last ones; of a single document its end, from the beginning of a
// line on, if it has lines.
func holdOut(docs []text.Document, files []string, percent int) (train, eval []text.Document, err error) {
	switch {
	case len(files) > 1:
		held := map[string]bool{}
		for _, f := range holdOutFiles(files, percent) {
			held[f] = true
		}
		for _, d := range docs {
			if held[d.Path] {
				eval = append(eval, d)
			} else {
				train = append(train, d)
			}
		}
		return train, eval, nil
	case len(docs) > 1:
		n := max(1, len(docs)*percent/100)
		return docs[:len(docs)-n], docs[len(docs)-n:], nil
	case len(docs) == 0:
		return nil, nil, nil
	}
	d := docs[0]
	cut := cutAt(d.Text, len(d.Text)-len(d.Text)*percent/100)
	if cut == 0 || cut == len(d.Text) {
		return nil, nil,
			fmt.Errorf("%s is too short to hold some of it out: want --validation_file, or --eval_strategy no "+
				"without --do_eval",
				d.Path)
	}
	return []text.Document{{Path: d.Path, Text: d.Text[:cut]}}, []text.Document{{Path: d.Path, Text: d.Text[cut:]}}, nil
}

// cutAt is a place near at, before it if possible, where a line begins; in a text of few lines a word, or else a
// character.
func cutAt(s string, at int) int {
	for _, end := range []byte{'\n', ' '} {
		if i := strings.LastIndexByte(s[:at], end) + 1; i > at/2 && i < len(s) {
			return i
		}
	}
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return at
}

// holdOutFiles takes percent of the files, at least one and not all: by the hash of the path relative to the folder
// that all files share, so that it matters neither where the files lie nor from where they are named.
func holdOutFiles(files []string, percent int) (eval []string) {
	root := commonFolder(files)
	for _, f := range files {
		h := fnv.New64a()
		_, _ = io.WriteString(h, filepath.ToSlash(strings.TrimPrefix(canonical(f), root))) // a hash never fails
		if h.Sum64()%100 < uint64(percent) {
			eval = append(eval, f)
		}
	}
	switch len(eval) {
	case 0:
		return files[len(files)-1:]
	case len(files):
		return files[1:]
	}
	return eval
}

// commonFolder is the deepest folder that all files lie below, with its last separator.
func commonFolder(files []string) string {
	const separator = string(filepath.Separator)
	common := canonical(files[0])
	for _, f := range files {
		dir := filepath.Dir(canonical(f)) + separator
		for !strings.HasPrefix(dir, common) {
			common = common[:strings.LastIndex(strings.TrimSuffix(common, separator), separator)+1]
		}
	}
	return common
}

// limitBytes keeps files of together at least n bytes, chosen by the hash of their names
// so that they come from all over the tree.
func limitBytes(files []string, n int64) ([]string, error) {
	if n == 0 {
		return files, nil
	}
	type hashed struct {
		file string
		hash uint64
	}
	list := make([]hashed, len(files))
	for i, f := range files {
		h := fnv.New64a()
		_, _ = io.WriteString(h, filepath.Base(f)) // a hash never fails
		list[i] = hashed{f, h.Sum64()}
	}
	slices.SortStableFunc(list, func(a, b hashed) int { return cmp.Compare(a.hash, b.hash) })
	var kept []string
	for _, f := range list {
		if n <= 0 {
			break
		}
		size, err := fileSize(f.file)
		if err != nil {
			return nil, err
		}
		n -= size
		kept = append(kept, f.file)
	}
	return kept, nil
}

func size(docs []text.Document) int64 {
	var n int64
	for _, d := range docs {
		n += int64(len(d.Text))
	}
	return n
}

// texts are those of documents.
func texts(docs []text.Document) []string {
	list := make([]string, len(docs))
	for i, d := range docs {
		list[i] = d.Text
	}
	return list
}

// trainTokenizer learns a byte-level BPE from the training text.
func (c *corpus) trainTokenizer(ctx context.Context, p *program.Process, vocab int) (*tokenizers.Tokenizer, error) {
	return tokens.Train(ctx, p, texts(c.train), tokenizers.TrainOptions{VocabSize: vocab,
		SpecialTokens: []string{endOfText}})
}

// end is the token that stands between documents: endOfText, or the first by which the model's texts end.
func (c *corpus) end(tok *tokenizers.Tokenizer) (int32, error) {
	if id, ok := tok.TokenID(endOfText); ok {
		return id, nil
	}
	if len(c.ends) == 0 {
		return 0, fmt.Errorf("the tokenizer has no %s token, and the model no eos_token_id: want one of them",
			endOfText)
	}
	return int32(c.ends[0]), nil
}

// encode turns documents into one stream of tokens.
func (c *corpus) encode(ctx context.Context, p *program.Process, tok *tokenizers.Tokenizer, docs []text.Document,
) (data.TokenSlice, error) {
	eot, err := c.end(tok)
	if err != nil {
		return nil, err
	}
	ids, err := tokens.Encode(ctx, p, tok, texts(docs))
	if err != nil {
		return nil, err
	}
	return data.JoinDocuments(ids, eot), nil
}

// blocks makes the sources of training and evaluation, nil where there is no text.
func (c *corpus) blocks(ctx context.Context, p *program.Process, tok *tokenizers.Tokenizer, blockSize int,
	d *DataArguments) (train, eval data.Source, err error) {
	if len(c.train) > 0 {
		ids, err := c.encode(ctx, p, tok, c.train)
		if err != nil {
			return nil, nil, err
		}
		blocks, err := data.TrainBlocks(ids, blockSize)
		if err != nil {
			return nil, nil, err
		}
		train = data.NewSource(first{blocks, d.MaxTrainSamples}, data.CausalLM(0))
	}
	if len(c.eval) > 0 {
		ids, err := c.encode(ctx, p, tok, c.eval)
		if err != nil {
			return nil, nil, err
		}
		if most := d.MaxEvalSamples; most != nil {
			if n := *most*(blockSize-1) + 1; n < len(ids) { // each block begins with the last token of the one before
				ids = ids[:n]
				c.eval = c.decode(tok, ids)
			}
		}
		blocks, err := data.EvalBlocks(ids, blockSize)
		if err != nil {
			return nil, nil, err
		}
		eval = data.NewSource(blocks, data.CausalLM(0))
	}
	return train, eval, nil
}

// decode is the documents of a stream that encode made.
func (c *corpus) decode(tok *tokenizers.Tokenizer, ids data.TokenSlice) (docs []text.Document) {
	eot, _ := c.end(tok) // encode found it
	var doc []byte
	for i, id := range ids {
		if id != eot {
			doc, _ = tok.AppendToken(doc, id) // the tokenizer made them
		}
		if (id == eot || i == len(ids)-1) && len(doc) > 0 {
			docs = append(docs, text.Document{Text: string(doc)})
			doc = doc[:0]
		}
	}
	return docs
}

// first is at most so many of the blocks; nil is all.
type first struct {
	*data.Blocks
	most *int
}

func (f first) Len() int {
	if f.most != nil {
		return min(*f.most, f.Blocks.Len())
	}
	return f.Blocks.Len()
}

// stopwatch says how long a phase took.
func stopwatch() func() string {
	start := time.Now()
	return func() string { return fmt.Sprintf("%.1f s", time.Since(start).Seconds()) }
}
