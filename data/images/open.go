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
)

// The names of folders with the images of a split, those of HuggingFace's imagefolder and of data sets on Kaggle.
var (
	trainFolders = []string{"train", "training", "training_set", "train_set"}
	testFolders  = []string{"validation", "valid", "val", "dev", "test", "testing", "test_set", "eval"}
)

// Open reads the data set in a folder: MNIST's IDX files, CIFAR's binary files, or folders of images by class below
// folders train and validation (or test, val and so on) or, without those, in dir itself. test is nil if there is only
// one split. An error that wraps fs.ErrNotExist says what the folder lacks of all three.
func Open(dir string) (train, test Set, err error) {
	if a, err := OpenIDX(dir, "train"); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return nil, nil, err
		}
		b, err := OpenIDX(dir, "t10k")
		return a, b, err
	}
	if _, _, err := cifarIn(dir); !errors.Is(err, fs.ErrNotExist) {
		a, err := OpenCIFAR(dir, true)
		if err != nil {
			return nil, nil, err
		}
		b, err := OpenCIFAR(dir, false)
		return a, b, err
	}
	return openFolders(dir)
}

func openFolders(dir string) (train, test Set, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("images: %w", err)
	}
	in := map[string]string{} // the folder of a split
	for _, names := range [][]string{trainFolders, testFolders} {
		for _, name := range slices.Backward(names) {
			for _, e := range entries {
				if strings.EqualFold(e.Name(), name) && isFolder(dir, e) {
					in[names[0]] = e.Name()
				}
			}
		}
	}
	if in[trainFolders[0]] == "" {
		f, err := OpenFolder(dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("images: %s has no images that are read%s: want MNIST's IDX files "+
				"(train-images-idx3-ubyte and so on), CIFAR's binary files (data_batch_1.bin, train.bin), or folders "+
				"of .png or .jpg files, one for each class, in it or in its folders train and validation: %w", dir,
				packed(entries), fs.ErrNotExist)
		}
		if err != nil {
			return nil, nil, err
		}
		return f, nil, nil
	}
	a, err := OpenFolder(filepath.Join(dir, in[trainFolders[0]]))
	if errors.Is(err, fs.ErrNotExist) { // it is a class itself
		if f, fault := OpenFolder(dir); fault == nil {
			return f, nil, nil
		}
	}
	if err != nil || in[testFolders[0]] == "" {
		return a, nil, err
	}
	b, err := OpenFolder(filepath.Join(dir, in[testFolders[0]]))
	if err == nil {
		err = sameClasses(dir, a, b)
	}
	return a, b, err
}

// packed names the first archive among the entries of a folder, which hold what is looked for as a rule.
func packed(entries []os.DirEntry) string {
	for _, e := range entries {
		for _, ending := range []string{".zip", ".tar", ".tar.gz", ".tgz"} {
			if strings.HasSuffix(strings.ToLower(e.Name()), ending) {
				return fmt.Sprintf(" (unpack %s)", e.Name())
			}
		}
	}
	return ""
}

// sameClasses refuses splits whose folders are not the same, since their numbers would not be.
func sameClasses(dir string, a, b *Folder) error {
	if !slices.Equal(a.names, b.names) {
		return fmt.Errorf("images: %s: the classes of the training images are %s, those of the others %s: want "+
			"the same folders", dir, strings.Join(a.names, ", "), strings.Join(b.names, ", "))
	}
	return nil
}
