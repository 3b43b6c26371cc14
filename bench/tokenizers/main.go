// SPDX-License-Identifier: Apache-2.0

// Tokenizers measures how fast a tokenizer encodes texts, beside HuggingFace's tokenizers, which peer.py runs:
//
//	RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false python bench/tokenizers/peer.py tokenizer.json FILE ...
//	go run -C bench ./tokenizers --workers 1 tokenizer.json FILE ...
//
// Each file is a document. Both print the best of several rounds over all of them, in MB of text a second, and a
// checksum of the ids, which must be the same.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

func main() {
	log.SetFlags(0)
	workers := pflag.Int("workers", 1, "goroutines; 0: one per processor")
	rounds := pflag.Int("rounds", 5, "rounds, of which the best counts")
	pflag.Parse()
	if pflag.NArg() < 2 {
		log.Fatal("want tokenizer.json and files of text")
	}
	if err := run(os.Stdout, *workers, *rounds, pflag.Arg(0), pflag.Args()[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer, workers, rounds int, path string, files []string) error {
	start := time.Now()
	tok, err := tokenizers.Load(path)
	if err != nil {
		return err
	}
	loading := time.Since(start)
	var texts []string
	size := 0
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		texts = append(texts, string(data))
		size += len(data)
	}
	best, sum, count := 0.0, int64(0), 0
	for range rounds {
		start := time.Now()
		all, err := tok.EncodeAll(context.Background(), texts, workers)
		if err != nil {
			return err
		}
		best = max(best, float64(size)/1e6/time.Since(start).Seconds())
		sum, count = 0, 0
		for _, ids := range all {
			for i, id := range ids {
				sum += int64(id) * int64(i%97+1)
			}
			count += len(ids)
		}
	}
	_, err = fmt.Fprintf(out, "%.2f MB/s, %d tokens, checksum %d, loaded in %d ms\n", best, count, sum,
		loading.Milliseconds())
	return err
}
