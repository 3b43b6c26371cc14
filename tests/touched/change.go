// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// touched lists the packages whose tests may see a change of files. A package sees the Go files of what it and its
// tests import, and whatever else lies in those folders and in folders below them that are no packages: assembly,
// embedded files, testdata. It sees what it names by a path with "..". If it runs the go command, it sees all packages.
//
// A document is seen by those alone that name its path and documents at all. What is no part of a package, as go.mod
// and the files of .ci, touches all packages.
func (m *module) touched(files []string) (list []string) {
	var change change
	for _, name := range files {
		if !change.add(m, path.Clean(name)) {
			return m.all()
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(m.packages)) {
		if m.touches(&change, m.packages[dir]) {
			list = append(list, m.importPath(dir))
		}
	}
	return list
}

func (m *module) all() (list []string) {
	for _, dir := range slices.Sorted(maps.Keys(m.packages)) {
		list = append(list, m.importPath(dir))
	}
	return list
}

func (m *module) importPath(dir string) string { return path.Join(m.path, dir) }

// change is files, and the packages that they are parts of.
type change struct {
	names []string        // without documents
	pages []string        // documents
	own   map[string]bool // packages whose tests and importers see it
	tests map[string]bool // packages whose tests alone see it
}

// add reports whether it is known who sees the file.
func (c *change) add(m *module, name string) bool {
	if (path.Ext(name) == ".md" || strings.HasPrefix(name, "docs/")) && !m.embeds(path.Dir(name)) {
		c.pages = append(c.pages, name)
		return true
	}
	c.names = append(c.names, name)
	dir := m.owner(path.Dir(name))
	switch {
	case dir == "" || strings.HasPrefix(path.Base(name), "go."):
		return false
	case strings.HasSuffix(name, "_test.go") && dir == path.Dir(name):
		c.tests = with(c.tests, dir)
	default:
		c.own = with(c.own, dir)
	}
	return true
}

func with(set map[string]bool, key string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[key] = true
	return set
}

// owner is the package that a folder is a part of, "" if there is none.
func (m *module) owner(dir string) string {
	for ; dir != "."; dir = path.Dir(dir) {
		if m.packages[dir] != nil {
			return dir
		}
	}
	return ""
}

// embeds reports whether files of a folder may be parts of a program.
func (m *module) embeds(dir string) bool {
	p := m.packages[m.owner(dir)]
	if p == nil {
		return false
	}
	for _, f := range p.files {
		for _, group := range f.Comments {
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "//go:embed ") {
					return true
				}
			}
		}
	}
	return false
}

// touches reports whether tests of a package see a change.
func (m *module) touches(c *change, p *pkg) bool {
	if c.own[p.dir] || c.tests[p.dir] {
		return true
	}
	if c.seenBy(p.tests) {
		return true
	}
	for dir := range m.needed(p) {
		if other := m.packages[dir]; c.own[dir] || other != nil && c.seenBy(other.own) {
			return true
		}
	}
	return false
}

// seenBy reports whether files with these uses see a change otherwise than by imports.
func (c *change) seenBy(u uses) bool {
	if u.builds() && len(c.own) > 0 {
		return true
	}
	names := c.names
	if u.pages {
		names = slices.Concat(names, c.pages)
	}
	return slices.ContainsFunc(names, func(name string) bool {
		for place := range u.reads {
			if place == "." || name == place || strings.HasPrefix(name, place+"/") ||
				path.Dir(name) == path.Dir(place) && strings.HasPrefix(name, place) { // and an ending
				return true
			}
		}
		return false
	})
}

// needed is a package and what it and its tests import.
func (m *module) needed(p *pkg) map[string]bool {
	if p.needed == nil {
		p.needed = map[string]bool{p.dir: true}
		m.need(p.needed, p.own.imports)
		m.need(p.needed, p.tests.imports)
	}
	return p.needed
}

// need adds packages and what they import.
func (m *module) need(needed, imports map[string]bool) {
	for dir := range imports {
		if needed[dir] {
			continue
		}
		needed[dir] = true
		if p := m.packages[dir]; p != nil {
			m.need(needed, p.own.imports)
		}
	}
}
