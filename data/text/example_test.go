// SPDX-License-Identifier: Apache-2.0

package text_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/data/text"
)

// Read all files of a folder: a plain file is one document, a JSON Lines file has one on each line.
func Example() {
	dir, err := os.MkdirTemp("", "corpus")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			panic(err)
		}
	}
	write("a.txt", "A whole file.")
	write("b.jsonl", `{"text": "The first line."}`+"\n"+`{"text": "The second line."}`+"\n")

	files, err := text.Expand(dir)
	if err != nil {
		panic(err)
	}
	for doc, err := range text.Read(files, text.Options{}) {
		if err != nil {
			panic(err)
		}
		fmt.Println(filepath.Base(doc.Path), doc.Line, doc.Text)
	}
	// Output:
	// a.txt 0 A whole file.
	// b.jsonl 1 The first line.
	// b.jsonl 2 The second line.
}
