// SPDX-License-Identifier: Apache-2.0

// Report reads what the benchmarks printed, from files or its input, and prints one table with targets and
// measurements, and the RATIO lines of all rows. It can write the table into a document, which may have tables of
// several machines, between two markers, and draw it. With --summary it writes one table of the most important rows of
// several machines instead, a file for each.
//
//	go run -C bench ./report --docs results.md --table zen5 --svg ../docs/figures/performance-zen5 \
//		report/testdata/zen5.txt
//	go run -C bench ./report --docs ../docs/performance.md --summary report/testdata/*.txt
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/internal/picture"
)

func main() {
	log.SetFlags(0)
	docs := pflag.String("docs", "", "write the table into this document")
	table := pflag.String("table", "", "name of the table in the document")
	figure := pflag.String("svg", "", "draw the table as NAME-light.svg and NAME-dark.svg")
	summarize := pflag.Bool("summary", false, "write a summary of several machines, one file each, into the document")
	pflag.Parse()
	if *summarize {
		if err := runSummary(pflag.Args(), *docs); err != nil {
			log.Fatal(err)
		}
		return
	}
	how := picture.Command("-C bench ./report", os.Args[1:])
	if err := run(pflag.Args(), *docs, *table, *figure, how, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run reports results in the ways that the arguments ask for. How is the command that does so.
func run(files []string, docs, table, figure, how string, w io.Writer) error {
	r, err := read(files)
	if err != nil {
		return err
	}
	if len(r.rows) == 0 {
		return fmt.Errorf("no line RATIO <row> <threads> <value> in %s", strings.Join(files, ", "))
	}
	if figure != "" {
		if err := r.draw(machine(table), how).Write(figure); err != nil {
			return err
		}
	}
	if docs != "" {
		if err := insert(docs, table, r.markdown()); err != nil {
			return err
		}
	}
	return r.print(w)
}

// runSummary writes the summary of all files into the document.
func runSummary(files []string, docs string) error {
	text, err := summary(files)
	if err != nil {
		return err
	}
	return insert(docs, "summary", text)
}

// insert replaces the table of that name in a document.
func insert(docs, table, markdown string) error {
	text, err := os.ReadFile(docs)
	if err != nil {
		return err
	}
	replaced, err := replaceTable(string(text), table, markdown)
	if err != nil {
		return fmt.Errorf("%s: %w", docs, err)
	}
	return os.WriteFile(docs, []byte(replaced), 0o644)
}

// read reads all files as one, or the input if there are none.
func read(files []string) (*results, error) {
	if len(files) == 0 {
		return parse(os.Stdin)
	}
	var all bytes.Buffer
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all.Write(text)
		all.WriteByte('\n')
	}
	return parse(&all)
}

// markers returns the lines of a document between which the table of that name stands.
func markers(name string) (begin, end string) {
	return fmt.Sprintf("<!-- measured, %s: bench/report writes what follows -->\n", name),
		fmt.Sprintf("<!-- end of what was measured, %s -->\n", name)
}

// replaceTable returns the document with another text between the markers of a table.
func replaceTable(document, name, table string) (string, error) {
	begin, end := markers(name)
	before, rest, ok := strings.Cut(document, begin)
	if !ok {
		return "", fmt.Errorf("no line %q", strings.TrimSpace(begin))
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		return "", fmt.Errorf("no line %q", strings.TrimSpace(end))
	}
	return before + begin + "\n" + table + "\n" + end + after, nil
}
