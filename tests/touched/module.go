// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// module is the Go files of a module, and of modules within it that are built of its packages.
type module struct {
	path     string
	packages map[string]*pkg // by folder, "." for the module's
}

// pkg is the Go files of a folder, of all build tags.
type pkg struct {
	dir   string
	files map[string]*ast.File // by name
	own   uses                 // of files without tests
	tests uses

	needed map[string]bool // see module.needed, which makes it
}

// uses are what Go files need of the rest of the module.
type uses struct {
	imports map[string]bool // folders of packages
	reads   map[string]bool // files and folders that they name by paths with "..", relative to the module
	words   map[string]bool // string literals that say how a go command is run: "go", "build"
	pages   bool            // they name documents
}

// read parses a module.
func read(files fs.FS) (*module, error) {
	text, err := fs.ReadFile(files, "go.mod")
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	name, ok := strings.CutPrefix(first, "module ")
	if !ok {
		return nil, errors.New(`go.mod: the first line has no module path: want "module PATH"`)
	}
	m := &module{path: strings.TrimSpace(name), packages: map[string]*pkg{}}
	return m, fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && unbuilt(path.Base(name)):
			return fs.SkipDir
		case entry.IsDir():
			if text, err := fs.ReadFile(files, path.Join(name, "go.mod")); err == nil && !m.includes(string(text)) {
				return fs.SkipDir
			}
			return nil
		case path.Ext(name) != ".go":
			return nil
		}
		return m.add(files, name)
	})
}

// includes reports whether a module within this one, given by its go.mod, counts as a part of it: it is built of the
// packages in the working folder. Any other is a module apart.
func (m *module) includes(mod string) bool {
	return strings.HasPrefix(mod, "module "+m.path+"\n") || strings.Contains(mod, "\nreplace "+m.path+" => ")
}

// unbuilt reports whether the go command leaves out a folder of that name.
func unbuilt(base string) bool {
	return base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
}

func (m *module) add(files fs.FS, name string) error {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := path.Dir(name)
	p := m.packages[dir]
	if p == nil {
		none := func() uses {
			return uses{imports: map[string]bool{}, reads: map[string]bool{}, words: map[string]bool{}}
		}
		p = &pkg{dir: dir, files: map[string]*ast.File{}, own: none(), tests: none()}
		m.packages[dir] = p
	}
	p.files[path.Base(name)] = f
	u := &p.own
	if strings.HasSuffix(name, "_test.go") {
		u = &p.tests
	}
	for _, spec := range f.Imports {
		if imported, _ := strconv.Unquote(spec.Path.Value); imported == m.path {
			u.imports["."] = true
		} else if folder, ok := strings.CutPrefix(imported, m.path+"/"); ok {
			u.imports[folder] = true
		}
	}
	ast.Inspect(f, func(n ast.Node) bool { u.see(dir, n); return true })
	return nil
}

// builds reports whether the files may run the go command, whose builds may be of any program: they have its name, and
// that of one of its commands, as strings.
func (u *uses) builds() bool {
	return u.words["go"] && slices.ContainsFunc([]string{"build", "test", "run", "list", "vet", "install"},
		func(word string) bool { return u.words[word] })
}

// see notes a path with "..", the name of a document, and words.
func (u *uses) see(dir string, n ast.Node) {
	switch n := n.(type) {
	case *ast.BasicLit:
		text := literal(n)
		if place, _, _ := strings.Cut(text, "*"); strings.HasPrefix(place, "../") {
			u.reads[path.Join(dir, place)] = true
		}
		if len(text) < len("install")+1 {
			u.words[text] = true
		}
		u.pages = u.pages || strings.Contains(text, ".md") || strings.Contains(text, "docs")
	case *ast.CallExpr:
		selector, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		for _, argument := range n.Args {
			if selector.Sel.Name == "Join" && literal(argument) == ".." { // what of is not known here
				u.reads["."] = true
			}
		}
	}
}

// literal is the text of a string literal, "" for any other node.
func literal(n ast.Node) string {
	l, ok := n.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(l.Value)
	return text
}
