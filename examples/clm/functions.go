// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data/text"
	"github.com/lockstep-ml/lockstep/program"
)

// public leaves out the Go source that programs do not import or that is written for one machine: internal packages,
// runtime and syscall.
func public(root string, files []string) []string {
	return slices.DeleteFunc(files, func(f string) bool {
		rel, err := filepath.Rel(root, f)
		parts := strings.Split(filepath.ToSlash(rel), "/")
		return err != nil || slices.Contains(parts, "internal") || parts[0] == "runtime" || parts[0] == "syscall"
	})
}

// readFunctions makes a document of each function in Go files: code alone, without comments, as gofmt writes it. Of all
// that a small model can learn in half a minute, this is what a reader can judge best.
func readFunctions(p *program.Process, files []string) ([]text.Document, error) {
	phase := p.Phase("reading text", int64(len(files)), callbacks.Items)
	defer phase.Close()
	parts := make([][]text.Document, len(files))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range files {
		group.Go(func() (err error) {
			parts[i], err = functions(f)
			phase.Add(1)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(parts...), nil
}

func functions(file string) ([]text.Document, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("reading the Go source: %w", err)
	}
	var docs []text.Document
	for _, d := range tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil { // a body in assembly
			continue
		}
		var b bytes.Buffer
		if err := format.Node(&b, set, f); err != nil {
			return nil, fmt.Errorf("reading the Go source: %s: %w", file, err)
		}
		b.WriteByte('\n')
		docs = append(docs, text.Document{Path: file, Line: set.Position(f.Pos()).Line, Text: b.String()})
	}
	return docs, nil
}
