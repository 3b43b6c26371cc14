// SPDX-License-Identifier: Apache-2.0

package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/foreign"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// The images of CIFAR: a record is one label or two, and three planes of 32×32 pixels (Krizhevsky 2009, "Learning
// Multiple Layers of Features from Tiny Images").
const (
	cifarSide  = 32
	cifarPixel = 3 * cifarSide * cifarSide
	cifarMost  = 1 << 20 // records of a file; the data set's have 50,000 at most
)

// cifar is one of the two data sets.
type cifar struct {
	train, test []string
	labels      int    // bytes before the pixels; the last is the class
	classes     int    // labels are below
	names       string // file of their names
}

var (
	cifar10 = cifar{train: []string{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
		"data_batch_5.bin"}, test: []string{"test_batch.bin"}, labels: 1, classes: 10, names: "batches.meta.txt"}
	cifar100 = cifar{train: []string{"train.bin"}, test: []string{"test.bin"}, labels: 2, classes: 100,
		names: "fine_label_names.txt"}
)

// cifarIn finds the data set in a folder, or in the folder that its archive makes there.
func cifarIn(dir string) (c cifar, where string, err error) {
	for _, sub := range []string{"", "cifar-10-batches-bin", "cifar-100-binary"} {
		for _, c := range []cifar{cifar10, cifar100} {
			where := filepath.Join(dir, sub)
			if _, err := os.Stat(filepath.Join(where, c.test[0])); err == nil {
				return c, where, nil
			}
		}
	}
	for _, pickle := range []string{"data_batch_1", "cifar-10-batches-py", "cifar-100-python"} {
		if _, err := os.Stat(filepath.Join(dir, pickle)); err == nil {
			return c, "", fmt.Errorf("images: %s has CIFAR in Python's pickles (%s), which are programs and are never "+
				"read: want the binary version, of the files data_batch_1.bin or train.bin", dir, pickle)
		}
	}
	return c, "", fmt.Errorf("images: %s has neither %s nor %s: %w", dir, cifar10.test[0], cifar100.test[0],
		fs.ErrNotExist)
}

// OpenCIFAR reads the training images, or those of the test, of CIFAR-10 or CIFAR-100 in the binary version: out of a
// folder with its files (data_batch_1.bin, train.bin and so on), or above the one that its archive makes. The classes
// of CIFAR-100 are its 100 fine ones. A folder without them is an error that wraps fs.ErrNotExist.
func OpenCIFAR(dir string, train bool) (*Dataset, error) {
	c, where, err := cifarIn(dir)
	if err != nil {
		return nil, err
	}
	files := c.test
	if train {
		files = c.train
	}
	d := &Dataset{channels: 3, height: cifarSide, width: cifarSide}
	for _, name := range files {
		path := filepath.Join(where, name)
		raw, err := vfs.ReadFile(vfs.OS, path, cifarMost*int64(c.labels+cifarPixel))
		if err == nil {
			err = c.add(d, raw)
		}
		if other := foreign.Check(path, raw); other != nil && err != nil {
			err = other
		}
		if err != nil {
			return nil, fmt.Errorf("images: %s: %w", path, err)
		}
	}
	d.names, err = c.readNames(where)
	return d, err
}

// add takes the records of a file.
func (c cifar) add(d *Dataset, raw []byte) error {
	record := c.labels + cifarPixel
	if len(raw) == 0 || len(raw)%record != 0 {
		return fmt.Errorf("it has %d bytes: want a multiple of the %d of a record", len(raw), record)
	}
	n := len(raw) / record
	d.pixels, d.labels = slices.Grow(d.pixels, n*cifarPixel), slices.Grow(d.labels, n)
	for i := range n {
		r := raw[i*record : (i+1)*record]
		label := r[c.labels-1]
		if int(label) >= c.classes {
			return fmt.Errorf("record %d has the label %d: want one below %d", i, label, c.classes)
		}
		d.labels, d.pixels = append(d.labels, label), append(d.pixels, r[c.labels:]...)
	}
	return nil
}

// maxNames bounds the file of names, in bytes.
const maxNames = 1 << 16

// readNames reads the names of the classes; nil if their file is missing.
func (c cifar) readNames(dir string) ([]string, error) {
	path := filepath.Join(dir, c.names)
	text, err := vfs.ReadFile(vfs.OS, path, maxNames)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	names := strings.Fields(string(text))
	if len(names) != c.classes {
		return nil, fmt.Errorf("images: %s has %d names: want %d", path, len(names), c.classes)
	}
	return names, nil
}
