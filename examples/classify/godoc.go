// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data/text"
	"github.com/lockstep-ml/lockstep/program"
)

// parts are the folders of the standard library that the demonstration tells apart.
var parts = []string{"crypto", "encoding", "go", "image", "math", "net", "os", "time"}

// goComments are the comments that document the declarations in those folders, with the folder as label. The comments
// of one file in ten are held out, so that the evaluation is on files that the training has not seen.
func goComments(p *program.Process, root string) (train, eval *texts, err error) {
	train, eval = &texts{name: "comments of Go's standard library"}, &texts{}
	files, more, err := text.GoSource(root)
	if err != nil {
		return nil, nil, err
	}
	files = slices.Sorted(slices.Values(append(files, more...)))
	phase := p.Phase("reading text", int64(len(files)), callbacks.Items)
	defer phase.Close()
	for _, file := range files {
		phase.Add(1)
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return nil, nil, err
		}
		rel = filepath.ToSlash(rel)
		label, _, _ := strings.Cut(rel, "/")
		if !slices.Contains(parts, label) {
			continue
		}
		to := train
		if text.HeldOut(rel, 10) {
			to = eval
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		for _, d := range tree.Decls {
			comment := strings.Join(strings.Fields(docOf(d)), " ")
			if len(comment) >= 20 && !strings.HasPrefix(comment, "#") { // "#include" is cgo's
				to.texts, to.labels = append(to.texts, comment), append(to.labels, label)
			}
		}
	}
	return train, eval, nil
}

// docOf is the comment of a declaration.
func docOf(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Doc.Text()
	case *ast.GenDecl:
		return d.Doc.Text()
	}
	return ""
}
