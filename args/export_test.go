// SPDX-License-Identifier: Apache-2.0

package args

// NoneOf is what takes the place of HuggingFace's None as a setting's default.
func NoneOf(key string) string { return noneOf[key] }

// PlannedValues lists the values of a setting that are known and not built.
func PlannedValues(key string) []string { return plannedValues[key] }
