// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// TrainOptions are the settings of Train.
type TrainOptions struct {
	// VocabSize is the number of tokens to end with, special ones and the 256 bytes
	// included. The vocabulary is smaller if the text has fewer pairs to merge.
	VocabSize int
	// MinFrequency is how often a pair must occur to be merged; 0 and 1 mean once.
	MinFrequency int
	// SpecialTokens get the first ids, in this order.
	SpecialTokens []string
	// Workers is the number of goroutines that count; 0 is one per processor. The
	// result does not depend on it.
	Workers int
	// Progress, if set, is called after every merge from Train's own goroutine with
	// the number of merges made and wanted.
	Progress func(done, total int)
}

func (o *TrainOptions) check() error {
	if least := 256 + len(o.SpecialTokens); o.VocabSize < least || o.VocabSize > math.MaxInt32 {
		return fmt.Errorf("tokenizers: vocabulary size is %d: want at least %d: 256 bytes and %d special tokens",
			o.VocabSize, least, len(o.SpecialTokens))
	}
	if o.MinFrequency < 0 {
		return fmt.Errorf("tokenizers: minimum frequency is %d: want 0 or more", o.MinFrequency)
	}
	seen := map[string]bool{}
	for _, s := range o.SpecialTokens {
		b, ok := unspell(s)
		if s == "" || seen[s] || ok && len(b) == 1 {
			return fmt.Errorf("tokenizers: special token %q is empty, a single byte or given twice", s)
		}
		seen[s] = true
	}
	return nil
}

// Train learns a byte-level BPE from texts. Special tokens in the texts are taken as
// plain text.
//
// The rules are those of HuggingFace's BpeTrainer with the full byte alphabet, so that both give the same ids: special
// tokens, the 256 bytes in order of their character, then one token per merge; the pair that occurs most often is
// merged next, of equals the one with the lowest (left, right) ids. A pair that reappears when another merge has
// produced one of its halves again is merged again and keeps its last rank, as there.
//
// The error is the first one that texts yields, the context's, or one that names a bad
// option; a corpus without text is an error too.
func Train(ctx context.Context, texts iter.Seq2[string, error], o TrainOptions) (*Tokenizer, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	words, err := countWords(ctx, texts, o.Workers)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		return nil, errors.New("tokenizers: there is no text to train on")
	}
	t := newTrainer(words, o)
	if err := t.run(ctx); err != nil {
		return nil, err
	}
	f := trainedFile(t.vocab, t.rankedMerges(), o.SpecialTokens)
	tok, err := f.build()
	if err != nil {
		return nil, err
	}
	tok.file = f.format()
	return tok, nil
}

// countWords counts the pre-tokens of all texts.
func countWords(ctx context.Context, texts iter.Seq2[string, error], workers int) (map[string]int64, error) {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	work := make(chan string, workers)
	counts := make([]map[string]int64, workers)
	group, ctx := errgroup.WithContext(ctx)
	for w := range counts {
		counts[w] = make(map[string]int64)
		group.Go(func() error {
			for text := range work {
				countText(counts[w], text)
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(work)
		for text, err := range texts {
			if err != nil {
				return err
			}
			for _, piece := range pieces(text, 1<<20) {
				select {
				case work <- piece:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	total := counts[0]
	for _, c := range counts[1:] {
		for word, n := range c {
			total[word] += n
		}
	}
	return total, nil
}

func countText(counts map[string]int64, text string) {
	for i := 0; i < len(text); {
		end := gpt2(text, i)
		word := text[i:end]
		if n, ok := counts[word]; ok {
			counts[word] = n + 1
		} else {
			counts[strings.Clone(word)] = 1 // the text itself need not stay in memory
		}
		i = end
	}
}

// trainer holds the state of the merging phase.
type trainer struct {
	o      TrainOptions
	vocab  []string // by id, spelled in the alphabet
	ids    map[string]int32
	words  []trainWord
	counts map[pair]int64
	fresh  map[pair][]int32 // words in which a pair has come up since it was last queued
	queue  pairQueue
	merges []pair // in order, a pair may come up more than once
}

// trainWord is a distinct pre-token: its tokens so far, and how often it occurs.
type trainWord struct {
	ids   []int32
	count int64
}

func newTrainer(counts map[string]int64, o TrainOptions) *trainer {
	t := &trainer{o: o, ids: make(map[string]int32), counts: make(map[pair]int64), fresh: make(map[pair][]int32)}
	for _, s := range o.SpecialTokens {
		t.token(s)
	}
	runes := slices.Sorted(slices.Values(byteRunes[:]))
	for _, r := range runes {
		t.token(string(r))
	}
	var byteIDs [256]int32
	for b, r := range byteRunes {
		byteIDs[b] = t.ids[string(r)]
	}
	for _, word := range slices.Sorted(maps.Keys(counts)) {
		ids := make([]int32, len(word))
		for i := range ids {
			ids[i] = byteIDs[word[i]]
		}
		w := int32(len(t.words))
		t.words = append(t.words, trainWord{ids: ids, count: counts[word]})
		for i := range len(ids) - 1 {
			t.add(makePair(ids[i], ids[i+1]), counts[word], w)
		}
	}
	t.enqueue()
	return t
}

// token returns the id of a token, a new one if it has none.
func (t *trainer) token(s string) int32 {
	id, ok := t.ids[s]
	if !ok {
		id = int32(len(t.vocab))
		t.ids[s] = id
		t.vocab = append(t.vocab, s)
	}
	return id
}

// add counts n more occurrences of p in word w.
func (t *trainer) add(p pair, n int64, w int32) {
	t.counts[p] += n
	list := t.fresh[p]
	if len(list) == 0 || list[len(list)-1] != w {
		t.fresh[p] = append(list, w)
	}
}

// enqueue queues the pairs that have come up since the last call.
func (t *trainer) enqueue() {
	for p, words := range t.fresh {
		if n := t.counts[p]; n > 0 {
			heap.Push(&t.queue, queuedPair{pair: p, count: n, words: words})
		}
	}
	clear(t.fresh)
}

func (t *trainer) run(ctx context.Context) error {
	base := len(t.vocab)
	least := max(int64(t.o.MinFrequency), 1)
	for len(t.vocab) < t.o.VocabSize && len(t.queue) > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		top := &t.queue[0]
		if n := t.counts[top.pair]; n != top.count { // counted down since it was queued
			top.count = n
			heap.Fix(&t.queue, 0)
			continue
		}
		if top.count < least {
			break
		}
		best := heap.Pop(&t.queue).(queuedPair)
		id := t.token(t.vocab[best.pair.left()] + t.vocab[best.pair.right()])
		t.merges = append(t.merges, best.pair)
		for _, w := range best.words {
			t.mergeWord(w, best.pair, id)
		}
		t.enqueue()
		if t.o.Progress != nil {
			t.o.Progress(len(t.vocab)-base, t.o.VocabSize-base)
		}
	}
	return nil
}

// mergeWord merges p in word w and keeps the counts of its neighbours. The count of p
// itself stays.
func (t *trainer) mergeWord(w int32, p pair, id int32) {
	word := &t.words[w]
	in, out := word.ids, word.ids[:0]
	for i := 0; i < len(in); i++ {
		if i+1 == len(in) || makePair(in[i], in[i+1]) != p {
			out = append(out, in[i])
			continue
		}
		left, right := in[i], in[i+1]
		if n := len(out); n > 0 {
			t.counts[makePair(out[n-1], left)] -= word.count
			t.add(makePair(out[n-1], id), word.count, w)
		}
		if i+2 < len(in) {
			t.counts[makePair(right, in[i+2])] -= word.count
			t.add(makePair(id, in[i+2]), word.count, w)
		}
		out = append(out, id)
		i++
	}
	word.ids = out
}

// rankedMerges returns each pair once, by its last rank.
func (t *trainer) rankedMerges() []pair {
	last := make(map[pair]int, len(t.merges))
	for rank, p := range t.merges {
		last[p] = rank
	}
	ranked := slices.Collect(maps.Keys(last))
	slices.SortFunc(ranked, func(a, b pair) int { return cmp.Compare(last[a], last[b]) })
	return ranked
}

// queuedPair is a candidate for the next merge and the words that have it.
type queuedPair struct {
	pair  pair
	count int64
	words []int32
}

// pairQueue is a heap by descending count, then ascending pair. Of two entries of one
// pair the one with the earlier words comes first, so that the order is total.
type pairQueue []queuedPair

func (q pairQueue) Len() int      { return len(q) }
func (q pairQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q pairQueue) Less(i, j int) bool {
	a, b := &q[i], &q[j]
	return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.pair, b.pair), slices.Compare(a.words, b.words)) < 0
}

// Push implements heap.Interface.
func (q *pairQueue) Push(x any) { *q = append(*q, x.(queuedPair)) }

// Pop implements heap.Interface.
func (q *pairQueue) Pop() any {
	old := *q
	top := old[len(old)-1]
	old[len(old)-1] = queuedPair{}
	*q = old[:len(old)-1]
	return top
}
