// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// zipOf is the beginning of a zip archive whose first entry has a name.
func zipOf(name string) string { return "PK\x03\x04" + strings.Repeat("\x00", 26) + name }

func TestCheck(t *testing.T) {
	for head, want := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n": "a pointer of Git LFS, not the file: " +
			"git lfs pull",
		"\x28\xb5\x2f\xfd\x04":                 "compressed by zstd: add .zst to its name",
		"\xfd7zXZ\x00\x00":                     "compressed by xz",
		"BZh91AY&SY\x95":                       "compressed by bzip2",
		"\x1f\x8b\x08":                         "compressed by gzip: add .gz to its name",
		"PAR1\x15":                             "a Parquet file: what reads tables and rows reads it, if",
		"\xff\xff\xff\xff\x10":                 "an Arrow stream, as datasets.save_to_disk writes",
		"\x80\x04\x95\x00":                     "a pickle of Python: it is a program",
		zipOf("archive/data.pkl"):              "a pickle of PyTorch: it is a program",
		zipOf("pytorch_model/data.pkl"):        "a pickle of PyTorch",
		zipOf("[Content_Types].xml"):           "a workbook of Excel: save it as CSV",
		zipOf("arr_0.npy"):                     "an archive of NumPy",
		zipOf("train.csv"):                     "a zip archive: unpack it",
		"PK\x05\x06":                           "a zip archive",
		strings.Repeat("a", 257) + "ustar\x00": "a tar archive",
		"\xff\xfet\x00":                        "UTF-16, not UTF-8: convert it with iconv",
	} {
		err := Check("x.csv", []byte(head))
		require.ErrorContains(t, err, "x.csv is "+want)
		var e *Error
		require.True(t, errors.As(err, &e))
		require.Error(t, CheckReader("x.csv", bytes.NewReader([]byte(head))))
	}
	for _, head := range []string{"", "text,label\n", "{}", "\x80", "\x80\x01\x01", "PK", "\xef\xbb\xbftext",
		"\x00\x00\x08\x03",
		strings.Repeat("a", 300), "GGUF is a format.\n", "PAR1\n", "%PDF-1.7 is another\n"} {
		require.NoError(t, Check("x", []byte(head)), "%q", head)
		require.NoError(t, CheckReader("x", strings.NewReader(head)), "%q", head)
	}
}
