// SPDX-License-Identifier: Apache-2.0

// Command differ prints what the tokenizer of a file makes of texts, for differ.py to compare.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run answers each line, a list of two texts and a number of tokens.
func run(path string) error {
	tok, err := tokenizers.Load(path)
	if err != nil {
		return err
	}
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for in.More() {
		var first, second string
		var room int
		if err := in.Decode(&[]any{&first, &second, &room}); err != nil {
			return err
		}
		a, err := answer(tok, first, second, room)
		if err != nil {
			return err
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

func answer(tok *tokenizers.Tokenizer, first, second string, room int) (map[string]any, error) {
	one, err := tok.Tokenize(first, tokenizers.EncodeOptions{})
	if err != nil {
		return nil, err
	}
	plain, err := tok.Encode(first)
	if err != nil {
		return nil, err
	}
	text, err := tok.Decode(plain)
	if err != nil {
		return nil, err
	}
	shown, err := tok.DecodeText(one.IDs)
	if err != nil {
		return nil, err
	}
	special := make([]int, len(one.Special))
	for i, s := range one.Special {
		if s {
			special[i] = 1
		}
	}
	var streamed string
	stream := tok.NewStream()
	for _, id := range one.IDs {
		s, err := stream.Next(id)
		if err != nil {
			return nil, err
		}
		streamed += s
	}
	if streamed += stream.Flush(); streamed != shown && utf8.ValidString(shown) {
		return nil, fmt.Errorf("%q: the stream gives %q, and Decode %q", first, streamed, shown)
	}
	a := map[string]any{"IDs": list(one.IDs), "Offsets": pairs(one.Offsets), "Words": list(one.Words),
		"Types":   list(one.TypeIDs),
		"Special": special, "Text": text, "Shown": shown, "Pair": nil}
	with, err := tok.EncodeWithSpecial(first)
	if err != nil {
		return nil, err
	}
	if fmt.Sprint(with) != fmt.Sprint(one.IDs) {
		return nil, fmt.Errorf("%q: EncodeWithSpecial gives %v, and Tokenize %v", first, with, one.IDs)
	}
	pair, err := tok.TokenizePair(first, second, tokenizers.EncodeOptions{MaxLength: room})
	if err == nil {
		a["Pair"] = []any{list(pair.IDs), pairs(pair.Offsets), list(pair.TypeIDs)}
	}
	return a, nil
}

// list is never null in JSON.
func list(ids []int32) []int32 { return append([]int32{}, ids...) }

func pairs(offsets []tokenizers.Offset) [][2]int {
	out := make([][2]int, len(offsets))
	for i, o := range offsets {
		out[i] = [2]int{o.Start, o.End}
	}
	return out
}
