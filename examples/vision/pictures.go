// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"

	"github.com/lockstep-ml/lockstep/data/images"
)

// read finds the images to train and to evaluate on.
func (j *job) read() error {
	d := j.data
	var err error
	if d.TrainDir != "" {
		j.train, j.test, err = readFolders(d)
	} else {
		j.train, j.test, err = images.Open(d.DataDir)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && d.TrainDir == "":
		return fmt.Errorf("%w\nwant a data set: apt install dataset-fashion-mnist puts one into %s; or give the "+
			"folder of another by --data_dir", err, fashionDir)
	case err != nil:
		return err
	case j.test == nil:
		if j.train, j.test, err = holdOut(j.train, d.TrainValSplit, j.args.Seed); err != nil {
			return fmt.Errorf("%s: %w", d.where(), err)
		}
	}
	j.train, j.test = some(j.train, d.MaxImages, j.args.Seed), some(j.test, d.MaxImages, j.args.Seed)
	size := j.size
	if d.ImageSize > 0 {
		size = imageSize{d.ImageSize, d.ImageSize}
	}
	if size.Height > 0 && size.Width > 0 {
		j.train = images.Resized(j.train, size.Height, size.Width)
		j.test = images.Resized(j.test, size.Height, size.Width)
	} else if err := oneSize(j.train); err != nil {
		return fmt.Errorf("%s: %w", d.where(), err)
	}
	return nil
}

// readFolders reads the folders of train_dir and validation_dir; test is nil without the second.
func readFolders(d *DataArguments) (train, test images.Set, err error) {
	a, err := images.OpenFolder(d.TrainDir)
	if err != nil || d.ValidationDir == "" {
		return a, nil, err
	}
	b, err := images.OpenFolder(d.ValidationDir)
	if err == nil && !slices.Equal(a.Names(), b.Names()) {
		err = fmt.Errorf("the classes of %s are %q, those of %s %q: want the same folders", d.TrainDir, a.Names(),
			d.ValidationDir, b.Names())
	}
	return a, b, err
}

// part is some images of a set.
type part struct {
	images.Set
	indices []int
}

func (p part) Len() int                        { return len(p.indices) }
func (p part) Get(i int) (images.Image, error) { return p.Set.Get(p.indices[i]) }

// holdOut divides a set at random.
func holdOut(s images.Set, share float64, seed uint64) (train, test images.Set, err error) {
	n := int(float64(s.Len())*share + 0.5)
	if n == 0 || n == s.Len() {
		return nil, nil, fmt.Errorf("train_val_split %g of %d images are %d: want some to train and some to "+
			"evaluate on",
			share, s.Len(), n)
	}
	order := rand.New(rand.NewPCG(seed, 0)).Perm(s.Len())
	held, kept := order[:n], order[n:]
	slices.Sort(held)
	slices.Sort(kept)
	return part{s, kept}, part{s, held}, nil
}

// some is at most so many images of a set, all for 0: the first ones or, of folders, which begin with those of the
// first class, some at random.
func some(s images.Set, most int, seed uint64) images.Set {
	if most == 0 || most >= s.Len() {
		return s
	}
	indices := make([]int, most)
	for i := range indices {
		indices[i] = i
	}
	if _, inMemory := s.(*images.Dataset); !inMemory {
		indices = rand.New(rand.NewPCG(seed, 1)).Perm(s.Len())[:most]
	}
	return part{s, indices}
}

// oneSize refuses images that do not have the size of the first, by looking at some.
func oneSize(s images.Set) error {
	const looked = 64
	first, err := s.Get(0)
	if err != nil {
		return err
	}
	for i := range min(s.Len(), looked) {
		x, err := s.Get(i * s.Len() / min(s.Len(), looked))
		if err != nil {
			return err
		}
		if x.Height != first.Height || x.Width != first.Width {
			return fmt.Errorf("there are images of %d×%d and of %d×%d pixels: want --image_size, as 64", first.Height,
				first.Width, x.Height, x.Width)
		}
	}
	return nil
}
