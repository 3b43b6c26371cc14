// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/stretchr/testify/require"
)

// formAttributes are the attributes of an element of GitHub's issue forms by its type; those with a star are required.
// Source: GitHub Docs, "Syntax for GitHub's form schema".
var formAttributes = map[string]string{
	"markdown":   "value*",
	"textarea":   "label* description placeholder value render",
	"input":      "label* description placeholder value",
	"dropdown":   "label* description multiple options* default",
	"checkboxes": "label* description options*",
}

// unknown returns the keys of m that the list lacks, and those with a star in the list that m lacks.
func unknown(m map[string]any, list string) (out []string) {
	words := strings.Fields(list)
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(words, key) && !slices.Contains(words, key+"*") {
			out = append(out, "unknown key "+key)
		}
	}
	for _, word := range words {
		if key, required := strings.CutSuffix(word, "*"); required && m[key] == nil {
			out = append(out, "no "+key)
		}
	}
	return out
}

// formFaults are the places where an issue form departs from GitHub's schema: GitHub then shows no form.
func formFaults(text string) []string {
	form, err := yaml.Parser().Unmarshal([]byte(text))
	if err != nil {
		return []string{err.Error()}
	}
	faults := unknown(form, "name* description* body* title labels assignees projects type")
	body, _ := form["body"].([]any)
	fields, ids := 0, map[string]bool{}
	for i, e := range body {
		element, _ := e.(map[string]any)
		attributes, _ := element["attributes"].(map[string]any)
		validations, _ := element["validations"].(map[string]any)
		kind, id := fmt.Sprint(element["type"]), fmt.Sprint(element["id"])
		list, known := formAttributes[kind]
		if !known {
			faults = append(faults, fmt.Sprintf("body %d: no type %s", i, kind))
		}
		for _, f := range slices.Concat(unknown(element, "type* id attributes* validations"), unknown(attributes, list),
			unknown(validations, "required")) {
			faults = append(faults, fmt.Sprintf("body %d: %s", i, f))
		}
		if _, named := element["id"]; named && (ids[id] || !regexp.MustCompile(`^[\w-]+$`).MatchString(id)) {
			faults = append(faults, fmt.Sprintf("body %d: id %s", i, id))
		}
		if ids[id] = true; kind != "markdown" {
			fields++
		}
	}
	if fields == 0 {
		faults = append(faults, "no field")
	}
	return faults
}

// TestIssueForms: the issue forms keep to GitHub's schema. (.ci/run workflows checks the workflows.)
func TestIssueForms(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(root, ".github/ISSUE_TEMPLATE/*.y*ml"))
	require.NoError(t, err)
	require.Len(t, names, 3)
	for _, name := range names {
		text := read(t, filepath.Join(".github/ISSUE_TEMPLATE", filepath.Base(name)))
		if filepath.Base(name) != "config.yml" {
			require.Empty(t, formFaults(text), name)
			continue
		}
		config, err := yaml.Parser().Unmarshal([]byte(text))
		require.NoError(t, err)
		require.Empty(t, unknown(config, "blank_issues_enabled contact_links"))
	}
}

// TestIssueFormsBites: each of these faults is found.
func TestIssueFormsBites(t *testing.T) {
	const good = "name: N\ndescription: D\nbody:\n  - type: input\n    id: one\n    attributes:\n      label: L\n"
	require.Empty(t, formFaults(good))
	for old, fault := range map[[2]string]string{
		{"description: D\n", ""}:                                 "no description",
		{"name: N", "nam: N"}:                                    "unknown key nam",
		{"type: input", "type: x"}:                               "body 0: no type x",
		{"label: L", "lable: L"}:                                 "body 0: unknown key lable",
		{"id: one", "id: o e"}:                                   "body 0: id o e",
		{"      label: L", "      render: text\n      label: L"}: "body 0: unknown key render",
		{"type: input\n    id: one\n    attributes:\n      label: L",
			"type: markdown\n    attributes:\n      value: V"}: "no field",
		{"  - type", "  -\ttype: x\n  - type"}: "found character that cannot start any token",
	} {
		require.Contains(t, strings.Join(formFaults(strings.Replace(good, old[0], old[1], 1)), "; "), fault)
	}
}
