// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
)

// wrapper is standard output as package program gives it: not a file, but with the descriptor of one.
type wrapper struct{ *os.File }

// A phase has its bar on a terminal, also behind a writer that only has its descriptor, and none elsewhere.
func TestPhaseOnATerminal(t *testing.T) {
	require.Nil(t, newPhase(new(strings.Builder), "tokenizer"))
	terminal, other, err := screen.OpenTerminal(72, 24)
	require.NoError(t, err)
	defer terminal.Close()
	defer other.Close()
	require.Equal(t, 72, terminalWidth(wrapper{terminal}))
	show := newPhase(wrapper{terminal}, "tokenizer")
	require.NotNil(t, show)
	show(1, 2)
	drawn := make([]byte, 4096)
	n, err := other.Read(drawn)
	require.NoError(t, err)
	require.Contains(t, string(drawn[:n]), "tokenizer")
}
