package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/text"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

// endOfText stands between documents.
const endOfText = "<|endoftext|>"

// corpus is the text of a run: documents for training and held-out ones.
type corpus struct {
	train, eval []text.Document
}

// readCorpus reads the user's files, or the Go standard library's source.
func readCorpus(d *DataArguments, training bool) (*corpus, error) {
	trainFiles, evalFiles, err := listFiles(d)
	if err != nil {
		return nil, err
	}
	c := &corpus{}
	if training {
		if c.train, err = text.Collect(text.Read(trainFiles, text.Options{})); err != nil {
			return nil, err
		}
	}
	// A byte-level tokenizer reads anything: an evaluation may be of bytes that are no text.
	c.eval, err = text.Collect(text.Read(evalFiles, text.Options{AnyBytes: !training}))
	return c, err
}

// listFiles says which files train and which are held out.
func listFiles(d *DataArguments) (train, eval []string, err error) {
	if len(d.TrainFile) == 0 && len(d.ValidationFile) == 0 {
		root, err := text.GoRoot()
		if err != nil {
			return nil, nil, err
		}
		train, eval, err = text.GoSource(root)
		if err != nil {
			return nil, nil, err
		}
		eval, err = limitBytes(eval, int64(d.MaxEvalBytes))
		return train, eval, err
	}
	if train, err = expand(d.TrainFile); err != nil {
		return nil, nil, err
	}
	if eval, err = expand(d.ValidationFile); err != nil {
		return nil, nil, err
	}
	if len(eval) == 0 {
		if train, eval, err = holdOut(train); err != nil {
			return nil, nil, err
		}
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
			return fmt.Errorf("%s is both in train_file and in validation_file: what is trained on cannot be held out", f)
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

// holdOut takes one file in twenty out of the training files, at least one: by the hash of
// the path relative to the folder that all files share, so that it matters neither where the
// files lie nor from where they are named.
func holdOut(files []string) (train, eval []string, err error) {
	if len(files) < 2 {
		return nil, nil, errors.New("one training file and no validation_file: want --validation_file, or at least two training files, of which one is held out")
	}
	root := commonFolder(files)
	for _, f := range files {
		if text.HeldOut(filepath.ToSlash(strings.TrimPrefix(canonical(f), root)), 20) {
			eval = append(eval, f)
		} else {
			train = append(train, f)
		}
	}
	if len(eval) == 0 {
		train, eval = files[:len(files)-1], files[len(files)-1:]
	}
	if len(train) == 0 {
		train, eval = files[1:], files[:1]
	}
	return train, eval, nil
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

// trainTokenizer learns a byte-level BPE from the training text.
func (c *corpus) trainTokenizer(ctx context.Context, vocab int, progress func(done, total int)) (*tokenizers.BPE, error) {
	texts := func(yield func(string, error) bool) {
		for _, d := range c.train {
			if !yield(d.Text, nil) {
				return
			}
		}
	}
	return tokenizers.Train(ctx, texts, tokenizers.TrainOptions{VocabSize: vocab, SpecialTokens: []string{endOfText}, Progress: progress})
}

// encode turns documents into one stream of tokens.
func encode(ctx context.Context, tok *tokenizers.BPE, docs []text.Document) (data.TokenSlice, error) {
	eot, ok := tok.TokenID(endOfText)
	if !ok {
		return nil, fmt.Errorf("the tokenizer has no %s token", endOfText)
	}
	texts := make([]string, len(docs))
	for i, d := range docs {
		texts[i] = d.Text
	}
	ids, err := tok.EncodeAll(ctx, texts, runtime.GOMAXPROCS(0))
	if err != nil {
		return nil, err
	}
	return data.JoinDocuments(ids, eot), nil
}

// blocks makes the sources of training and evaluation.
func (c *corpus) blocks(ctx context.Context, tok *tokenizers.BPE, blockSize int) (train, eval data.Source, err error) {
	collate := data.CausalLM(0)
	if len(c.train) > 0 {
		ids, err := encode(ctx, tok, c.train)
		if err != nil {
			return nil, nil, err
		}
		blocks, err := data.TrainBlocks(ids, blockSize)
		if err != nil {
			return nil, nil, err
		}
		train = data.NewSource(blocks, collate)
	}
	ids, err := encode(ctx, tok, c.eval)
	if err != nil {
		return nil, nil, err
	}
	blocks, err := data.EvalBlocks(ids, blockSize)
	if err != nil {
		return nil, nil, err
	}
	return train, data.NewSource(blocks, collate), nil
}

// stopwatch says how long a phase took.
func stopwatch() func() string {
	start := time.Now()
	return func() string { return time.Since(start).Round(10 * time.Millisecond).String() }
}
