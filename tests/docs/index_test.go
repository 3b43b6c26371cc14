// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// indexRow is a row of an index: a link to a page in the same folder, and the question that the page answers.
var indexRow = regexp.MustCompile(`(?m)^\| \[[^\]]+\]\(([\w-]+\.md)\) \| [^|]+\? \|$`)

// indexFaults lists pages that an index does not have exactly once.
func indexFaults(index string, pages []string) (list []string) {
	rows := map[string]int{}
	for _, m := range indexRow.FindAllStringSubmatch(index, -1) {
		rows[m[1]]++
	}
	for _, page := range pages {
		if page != "README.md" && rows[page] != 1 {
			list = append(list, page)
		}
	}
	return list
}

// TestIndex: docs/README.md has a row for each page of docs/, with the question that it answers, in the four kinds of
// documentation (Procida, Diátaxis); and the README links to it.
func TestIndex(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	require.NoError(t, err)
	var pages []string
	for _, file := range files {
		pages = append(pages, filepath.Base(file))
	}
	index := read(t, "docs/README.md")
	require.Greater(t, len(pages), 30)
	require.Empty(t, indexFaults(index, pages),
		"docs/README.md: want one row \"| [title](page.md) | question? |\" for each of these pages")
	var kinds []string
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(index, -1) {
		kinds = append(kinds, m[1])
	}
	require.Equal(t, []string{"Tutorials", "How-to guides", "Reference", "Design"}, kinds)
	require.True(t, strings.Contains(read(t, "README.md"), "](docs/README.md)"), "README.md links to docs/README.md")
}

func TestIndexBites(t *testing.T) {
	const index = "| [A](a.md) | What is A? |\n| [B](b.md) | About B |\n| [C](c.md) | What? |\n| [C](c.md) | Why? |\n"
	require.Equal(t, []string{"b.md", "c.md", "d.md"},
		indexFaults(index, []string{"README.md", "a.md", "b.md", "c.md", "d.md"}))
}
