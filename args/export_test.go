// SPDX-License-Identifier: Apache-2.0

package args

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Choices lists the values of a field, separated by commas; empty: any.
func Choices(t reflect.Type, i int) string { return strings.Join(newField(t, i).choices, ",") }

// Usage is the usage text of a field.
func Usage(t reflect.Type, i int) string { return newField(t, i).usage }

// Heading is the heading of a struct's flags.
func Heading(name string) string { return heading(name) }

// NoneOf is what takes the place of HuggingFace's None as a setting's default.
func NoneOf(key string) string { return noneOf[key] }

// PlannedValues lists the values of a setting that are known and not built.
func PlannedValues(key string) []string {
	built := newSchema(&TrainingArguments{}).byKey[key]
	return slices.DeleteFunc(slices.Clone(plannedValues[key]), func(v string) bool {
		return slices.Contains(built.choices, v)
	})
}

// RefusedReporters lists the names of HuggingFace's reporters that are refused, sorted.
func RefusedReporters() []string { return slices.Sorted(maps.Keys(otherReporters)) }

// ReporterPackages lists the reporters that args knows to be in package integrations.
func ReporterPackages() []string { return reporterPackages }
