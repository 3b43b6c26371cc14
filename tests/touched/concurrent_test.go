// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestConcurrent(t *testing.T) {
	m, err := read(fstest.MapFS{
		"go.mod":               file("module m\n"),
		"none/none.go":         file("package none\nimport _ \"m/lock\"\nvar sync = \"go f()\"\n"),
		"lock/lock.go":         file("package lock\nimport _ \"sync\"\n"),
		"number/number.go":     file("package number\nimport _ \"sync/atomic\"\n"),
		"starts/starts.go":     file("package starts\nfunc f() { go f() }\n"),
		"tests/tests.go":       file("package tests\n"),
		"tests/tests_test.go":  file("package tests\nfunc f() { func() { go f() }() }\n"),
		"other/other_plan9.go": file("package other\nimport _ \"sync\"\n"),
		"ranks/ranks_test.go":  file("package ranks\nimport _ \"m/comm/local\"\n"),
	})
	require.NoError(t, err)
	require.Equal(t, "m/lock m/number m/other m/ranks m/starts m/tests", strings.Join(m.concurrent(), " "))
}

func TestConcurrentInThisModule(t *testing.T) {
	m, err := read(os.DirFS(root))
	require.NoError(t, err)
	list := m.concurrent()
	for _, dir := range []string{"accelerate", "accelerate/launch", "accelerate/pp", "checkpoint", "comm/shm",
		"comm/tcp", "data", "hub", "internal/backend/cpu", "internal/parallel", "models/serve", "tensor", "trainer"} {
		require.Contains(t, list, m.importPath(dir))
	}
	require.NotContains(t, list, m.importPath("metrics"))
	for _, dir := range ranks {
		require.NotNil(t, m.packages[dir], dir)
	}
}
