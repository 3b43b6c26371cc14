// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestJoinDocuments(t *testing.T) {
	require.Equal(t, TokenSlice{9, 1, 2, 9, 9, 3, 9}, JoinDocuments([][]int32{{1, 2}, {}, {3}}, 9))
	require.Equal(t, TokenSlice{9}, JoinDocuments(nil, 9))
}

func TestTrainBlocks(t *testing.T) {
	b, err := TrainBlocks(TokenSlice{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 4)
	require.NoError(t, err)
	require.Equal(t, 2, b.Len())
	for i, want := range [][]int32{{0, 1, 2, 3}, {4, 5, 6, 7}} {
		got, err := b.Get(i)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, i := range []int{-1, 2} {
		_, err = b.Get(i)
		require.ErrorContains(t, err, "of 2")
	}
	_, err = TrainBlocks(TokenSlice{1, 2, 3}, 4)
	require.ErrorContains(t, err, "dataset has 3 tokens, shorter than one block of 4")
	_, err = TrainBlocks(TokenSlice{1, 2, 3}, 1)
	require.ErrorContains(t, err, "block_size is 1: want at least 2")
}

// TestEvalBlocksPredictOnce: all tokens but the first are predicted, each once, in order.
func TestEvalBlocksPredictOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stream := make(TokenSlice, rapid.IntRange(2, 60).Draw(t, "tokens"))
		for i := range stream {
			stream[i] = int32(i)
		}
		size := rapid.IntRange(2, 12).Draw(t, "block size")
		b, err := EvalBlocks(stream, size)
		require.NoError(t, err)
		predicted := TokenSlice{0}
		for i := range b.Len() {
			block, err := b.Get(i)
			require.NoError(t, err)
			require.LessOrEqual(t, len(block), size)
			require.Equal(t, predicted[len(predicted)-1], block[0], "the context of the first prediction")
			predicted = append(predicted, block[1:]...)
		}
		require.Equal(t, stream, predicted)
	})
	_, err := EvalBlocks(TokenSlice{1}, 4)
	require.ErrorContains(t, err, "dataset has 1 token")
	_, err = EvalBlocks(TokenSlice{1, 2, 3}, 0)
	require.ErrorContains(t, err, "block_size is 0")
}

// writeTokens writes a token file in pieces.
func writeTokens(t testing.TB, vocabSize int, tokens []int32) string {
	path := filepath.Join(t.TempDir(), "tokens.bin")
	w, err := CreateTokenFile(path, vocabSize)
	require.NoError(t, err)
	for len(tokens) > 0 {
		n := min(len(tokens), 1000)
		require.NoError(t, w.Write(tokens[:n]))
		tokens = tokens[n:]
	}
	require.NoError(t, w.Close())
	require.NoError(t, w.Close(), "again")
	requireNoTemporary(t, path)
	return path
}

func TestTokenFile(t *testing.T) {
	for _, c := range []struct{ vocab, width int }{{1 << 16, 2}, {1<<16 + 1, 4}, {math.MaxInt32, 4}} {
		tokens := make(TokenSlice, 12_345)
		for i := range tokens {
			tokens[i] = int32((i * 7919) % c.vocab)
		}
		tokens[0] = int32(c.vocab - 1)
		path := writeTokens(t, c.vocab, tokens)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.EqualValues(t, 32+c.width*len(tokens), info.Size())

		f, err := OpenTokenFile(path)
		require.NoError(t, err)
		require.EqualValues(t, len(tokens), f.Len())
		require.NoError(t, f.Verify())
		got := make(TokenSlice, len(tokens))
		require.NoError(t, f.ReadTokens(got, 0))
		require.Equal(t, tokens, got)
		require.NoError(t, f.ReadTokens(got[:3], 12_342))
		require.Equal(t, tokens[12_342:], got[:3])
		for _, at := range []int64{-1, 12_343, math.MaxInt64} {
			require.ErrorContains(t, f.ReadTokens(got[:3], at), "are not in a stream of 12345")
			require.Error(t, tokens.ReadTokens(got[:3], at))
		}
		blocks, err := TrainBlocks(f, 100)
		require.NoError(t, err)
		require.Equal(t, 123, blocks.Len())
		block, err := blocks.Get(122)
		require.NoError(t, err)
		require.EqualValues(t, tokens[12_200:12_300], block)

		require.NoError(t, f.Close())
		require.NoError(t, f.Close())
		require.ErrorIs(t, f.ReadTokens(got, 0), os.ErrClosed)
		require.ErrorIs(t, f.Verify(), os.ErrClosed)
	}
}

func TestTokenFileOfNothing(t *testing.T) {
	f, err := OpenTokenFile(writeTokens(t, 10, nil))
	require.NoError(t, err)
	defer f.Close()
	require.Zero(t, f.Len())
	require.NoError(t, f.Verify())
	require.NoError(t, f.ReadTokens(nil, 0))
}

func TestTokenFileConcurrentReadsAndClose(t *testing.T) {
	tokens := make([]int32, 5000)
	f, err := OpenTokenFile(writeTokens(t, 10, tokens))
	require.NoError(t, err)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			buf := make([]int32, 100)
			for f.ReadTokens(buf, 1000) == nil {
				runtime.Gosched()
			}
		})
	}
	require.NoError(t, f.Close())
	group.Wait()
}

// A file that is cut short while it is open, to its middle or to nothing, is an error that names it.
func TestTokenFileCutShort(t *testing.T) {
	path := writeTokens(t, 10, make([]int32, 5000))
	f, err := OpenTokenFile(path)
	require.NoError(t, err)
	defer f.Close()
	buf := make([]int32, 100)
	for _, size := range []int64{32 + 2*4950, 32, 0} {
		require.NoError(t, os.Truncate(path, size))
		err := f.ReadTokens(buf, 4900)
		require.EqualError(t, err, fmt.Sprintf("data: token file %s: it has %d bytes: want 10032: it was cut short "+
			"after it was opened", path, size))
		require.Error(t, f.Verify())
	}
}

func TestTokenFileRefuses(t *testing.T) {
	path := writeTokens(t, 300, []int32{1, 2, 299})
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	change := func(at int, b byte) []byte {
		bad := bytes.Clone(good)
		bad[at] = b
		return bad
	}
	header := func(h tokenHeader, size int) []byte { return append(h.encode(), make([]byte, size)...) }
	for want, content := range map[string][]byte{
		"not a token file":               []byte("hello, this is a text and no token file"),
		"was not written completely":     make([]byte, 40),
		"it is not a token file":         {},
		"version is 2":                   change(8, 2),
		"header is corrupt":              change(16, 2),
		"has 37 bytes: want 38":          good[:len(good)-1],
		"has 39 bytes: want 38":          append(bytes.Clone(good), 0),
		"have 3 bytes":                   header(tokenHeader{width: 3, count: 1}, 3),
		"claims 9223372036854775807":     header(tokenHeader{width: 2, count: math.MaxInt64}, 3),
		"it has 32 bytes: want 40000032": header(tokenHeader{width: 4, count: 10_000_000}, 0),
	} {
		bad := filepath.Join(t.TempDir(), "bad.bin")
		require.NoError(t, os.WriteFile(bad, content, 0o644))
		_, err := OpenTokenFile(bad)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, bad)
	}
	_, err = OpenTokenFile(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.WriteFile(path, change(33, 7), 0o644))
	f, err := OpenTokenFile(path)
	require.NoError(t, err)
	defer f.Close()
	require.ErrorContains(t, f.Verify(), "tokens are corrupt")
}

func TestTokenWriterRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.bin")
	for _, id := range []int32{-1, 300} {
		w, err := CreateTokenFile(path, 300)
		require.NoError(t, err)
		require.ErrorContains(t, w.Write([]int32{5, id}), "token 1 has id")
		require.ErrorContains(t, w.Write([]int32{5}), "token 1 has id", "the first error stays")
		require.ErrorContains(t, w.Close(), "token 1 has id")
		require.NoFileExists(t, path)
		requireNoTemporary(t, path)
	}
	w, err := CreateTokenFile(path, 300)
	require.NoError(t, err)
	w.Abort()
	w.Abort()
	require.ErrorContains(t, w.Write([]int32{1}), "aborted")
	require.ErrorContains(t, w.Close(), "aborted")
	requireNoTemporary(t, path)

	_, err = CreateTokenFile(path, 0)
	require.ErrorContains(t, err, "vocabulary size is 0")
	_, err = CreateTokenFile(filepath.Join(t.TempDir(), "no", "folder"), 5)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// FuzzTokenFile: a file is refused, or its tokens can be read.
func FuzzTokenFile(f *testing.F) {
	good, err := os.ReadFile(writeTokens(f, 300, []int32{1, 2, 299}))
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:20])
	f.Add(tokenHeader{width: 4, count: 1 << 60}.encode())
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "tokens.bin")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		file, err := OpenTokenFile(path)
		if err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		defer file.Close()
		require.NoError(t, file.ReadTokens(make([]int32, file.Len()), 0))
		if err := file.Verify(); err != nil {
			require.ErrorContains(t, err, "corrupt")
		}
	})
}

// requireNoTemporary holds that nothing is left of a file that was not finished.
func requireNoTemporary(t testing.TB, path string) {
	t.Helper()
	left, err := filepath.Glob(path + ".*")
	require.NoError(t, err)
	require.Empty(t, left)
}

// A link in the place of the file on its way is not followed: the name cannot be known, and a taken one is not used.
func TestTokenWriterFollowsNoPlantedLink(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "tokens.bin"), filepath.Join(dir, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(victim, path+".tmp"))
	w, err := CreateTokenFile(path, 10)
	require.NoError(t, err)
	require.NoError(t, w.Write([]int32{1, 2}))
	require.NoError(t, w.Close())
	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))
	_, err = OpenTokenFile(os.DevNull)
	require.ErrorContains(t, err, "neither a file nor a folder")
}
