// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/screen"
)

// typing gives its keys one read after the other, as a person at a terminal does.
type typing struct{ keys []string }

func (k *typing) Read(p []byte) (int, error) {
	if len(k.keys) == 0 {
		return 0, io.EOF
	}
	n := copy(p, k.keys[0])
	if k.keys[0] = k.keys[0][n:]; k.keys[0] == "" {
		k.keys = k.keys[1:]
	}
	return n, nil
}

// edit returns an editor of a screen, which reads keys.
func edit(width, height int, keys ...string) (*editor, *screen.Screen) {
	s := screen.New(width, height)
	return &editor{keys: bufio.NewReader(&typing{keys}), out: s, size: func() (int, int) { return s.Width(), height },
		paint: func(prompt string) string { return "\x1b[1m" + prompt + "\x1b[0m" }}, s
}

const (
	left  = "\x1b[D"
	right = "\x1b[C"
	above = "\x1b[A"
	below = "\x1b[B"
	erase = "\x7f"
)

// What is typed and edited is what is read, and what the screen shows.
func TestEditor(t *testing.T) {
	for _, c := range []struct {
		name  string
		keys  []string
		text  string
		shown string // with the cursor's place before the message is sent; "": the text in a row
	}{
		{"plain", []string{"Who", "?"}, "Who?", ""},
		{"inserted", []string{"ac", left, "b", right, "d"}, "abcd", ""},
		{"double width", []string{"京都タワー", left, left, erase, "x", left, left, "\x1b[3~"}, "京xワー", ">>> 京xワー"},
		{"clusters", []string{"e\u0301", "👨‍👩‍👧", erase, "n\u0303", left, left, erase}, "e\u0301n\u0303", "-"},
		{"over several rows", []string{"0123456789abcdefghijklmnop", left, left, erase, "Z"},
			"0123456789abcdefghijklmZop", ">>> 0123456789abcdef\nghijklmZop"},
		{"a full row", []string{"0123456789abcdef"}, "0123456789abcdef", ""},
		{"double width at the edge", []string{"0123456789abcde京都"}, "0123456789abcde京都", ">>> 0123456789abcde\n京都"},
		{"words", []string{"one two three", "\x17", "\x1bb", "2 ", "\x1bf", "!"}, "one 2 two! ", ">>> one 2 two!"},
		{"other spaces", []string{"東\u3000京\u00a0", "x\u2003y"}, "東\u3000京\u00a0x\u2003y", ""},
		{"a wide space at the edge", []string{"0123456789abcde\u3000x"}, "0123456789abcde\u3000x",
			">>> 0123456789abcde\n\u3000x"},
		{"a wide space erased", []string{"東\u3000京", left, erase}, "東京", ""},
		{"words between other spaces", []string{"one\u3000two\u00a0three", "\x17", "\x1bb", "2", "\x1bf", "!"},
			"one\u30002two!\u00a0", ""},
		{"words between pasted spaces", []string{"\x1b[200~one\u3000two\u00a0\u2003three\x1b[201~", "\x1b\x7f",
			"\x1b\x7f"}, "one\u3000", ""},
		{"other ends of lines", []string{"\x1b[200~one\u2028two\u0085\x1b[201~", "three\u2029four"},
			"one\ntwo\nthree\nfour", ">>> one\n... two\n... three\n... four"},
		{"line", []string{"one", "\x01", ">", "\x05", "<", "\x02", "\x0b"}, ">one", ""},
		{"started over", []string{"wrong", "\x15", "right"}, "right", ""},
		{"pasted", []string{"see \x1b[200~a\r\n\tb\rc\x1b[31m\x1b[201~", "!"}, "see a\n\tb\nc[31m!",
			">>> see a\n...     b\n... c[31m!"},
		{"a line more", []string{"one", "\x1b\r", "two", "\x01", erase, " and "}, "one and two", ""},
		{"a tab", []string{"a", "\t", "b"}, "a\tb", ">>> a    b"},
		{"unknown keys", []string{"a", "\x1b[15~", "\x1bOP", "\x1b[1;2R", "\x00\x1c", "b"}, "ab", ""},
	} {
		e, s := edit(20, 10, append(c.keys, "\r")...)
		text, err := e.read(ready)
		require.NoError(t, err, c.name)
		require.Equal(t, c.text, text, c.name)
		want := c.shown
		if want == "" {
			want = ready + c.text
		}
		if want != "-" {
			require.Equal(t, want, s.Text(), c.name)
		}
		require.Empty(t, s.Broken(), c.name)
	}
}

// The cursor is where the next character appears, also where rows are full, and before what comes behind it.
func TestCursor(t *testing.T) {
	e, s := edit(10, 5, "京都12", left, left, left, "x", "yz", "\x05", "34")
	_, err := e.read(ready)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, ">>> 京xyz\n都1234", s.Text())
}

// A text that the screen has no room for is shown around the cursor, and as a whole when it is sent.
func TestLongText(t *testing.T) {
	long := strings.Repeat("0123456789", 1000)
	e, s := edit(20, 4, long, left, left, "x", "\r")
	text, err := e.read(ready)
	require.NoError(t, err)
	require.Equal(t, long[:9998]+"x89", text)
	require.Equal(t, ready+text, strings.Join(s.Lines()[len(s.Lines())-501:], ""))
}

// A terminal that becomes narrower has broken the rows above the cursor.
func TestResize(t *testing.T) {
	e, s := edit(20, 10, "0123456789abcdefgh", "i", "\r")
	resized := false
	e.size = func() (int, int) {
		if strings.HasSuffix(e.before, "h") && !resized && e.frame.rows != nil && len(e.frame.rows) > 1 {
			resized = true
			s.Resize(12)
		}
		return s.Width(), 10
	}
	text, err := e.read(ready)
	require.NoError(t, err)
	require.Equal(t, "0123456789abcdefghi", text)
	require.Equal(t, ready+text, strings.Join(s.Lines(), ""))
}

func TestRecall(t *testing.T) {
	e, _ := edit(40, 5, "one\r", "two\r", "two\r", above, above, "!\r", "draft", above, below, "\r", above, above,
		below, above, "\r", "\x03", "\x04")
	for _, want := range []string{"one", "two", "two", "one!", "draft", "one!"} {
		text, err := e.read(ready)
		require.NoError(t, err)
		require.Equal(t, want, text)
	}
	_, err := e.read(ready)
	require.ErrorIs(t, err, errInterrupted)
	_, err = e.read(ready)
	require.ErrorIs(t, err, io.EOF)
}

// Lines of answers break between words, wherever their pieces end; those of code do not.
func TestWrapper(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"The sky is blue, because air scatters it.", "The sky is blue,\nbecause air scatters\nit."},
		{"exactly twenty wide.\nand more", "exactly twenty wide.\nand more"},
		{"exactly twenty wide. \nand", "exactly twenty wide.\nand"},
		{"0123456789012345678901 2", "01234567890123456789\n01 2"},
		{"a 0123456789012345678901", "a\n01234567890123456789\n01"},
		{"北京是中华人民共和国的首都,很大", "北京是中华人民共和国\n的首都,很大"},
		{"x\n```go\nfunc f(a, b int) int\n```\none two three four five", "x\n```go\nfunc f(a, b int) int\n```\n" +
			"one two three four\nfive"},
	} {
		for _, size := range []int{1, 3, 1000} {
			s := screen.New(22, 50)
			w := &wrapper{out: s, columns: func() int { return 20 }}
			for rest := []rune(c.text); len(rest) > 0; {
				n := min(size, len(rest))
				require.NoError(t, w.write(string(rest[:n])))
				rest = rest[n:]
			}
			require.Equal(t, c.want, s.Text(), "pieces of %d", size)
		}
	}
	var plain strings.Builder
	w := &wrapper{out: &plain, columns: func() int { return 0 }}
	long := strings.Repeat("word ", 50)
	require.NoError(t, w.write(long))
	require.Equal(t, long, plain.String())
}
