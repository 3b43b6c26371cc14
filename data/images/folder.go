// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg" // a format of image.Decode
	_ "image/png"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// What a file of an image may be, so that a small one does not fill the memory. One of at most leastPixels may be
// compressed further than the others.
const (
	maxFile     = 256 << 20 // bytes
	maxPixels   = 1 << 26
	leastPixels = 1 << 24
	perByte     = 100 // pixels for each byte of the file
)

// Folder is a Set of PNG and JPEG files that lie in folders by class, as torchvision's ImageFolder and HuggingFace's
// imagefolder have them. Each is read and decoded when it is asked for, in color.
type Folder struct {
	files  []string
	labels []int
	names  []string
}

// OpenFolder lists the images below the folders of dir, which are the classes, in the order of their names. Names that
// begin with a dot are passed over, and so are files that are no .png, .jpg or .jpeg. It is an error if there are fewer
// than 2 classes, or a class without an image; one without any folder wraps fs.ErrNotExist. Images of several sizes
// make no batch: see Resized.
func OpenFolder(dir string) (*Folder, error) {
	f := &Folder{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	var empty []string
	for _, e := range entries { // in the order of their names
		if !isFolder(dir, e) {
			continue
		}
		before := len(f.files)
		if err := f.list(filepath.Join(dir, e.Name()), len(f.names)); err != nil {
			return nil, fmt.Errorf("images: %w", err)
		}
		if f.names = append(f.names, e.Name()); len(f.files) == before {
			empty = append(empty, e.Name())
		}
	}
	switch {
	case len(f.files) == 0:
		return nil, fmt.Errorf("images: %s has no folders with .png or .jpg files: %w", dir, fs.ErrNotExist)
	case len(empty) > 0:
		return nil, fmt.Errorf("images: %s: the folders of the classes %s have no .png or .jpg file", dir,
			strings.Join(empty, ", "))
	case len(f.names) == 1:
		return nil, fmt.Errorf("images: %s has one folder, %s: want one for each of at least 2 classes", dir,
			f.names[0])
	}
	return f, nil
}

// isFolder reports whether an entry is a folder, or a link to one, that is not hidden.
func isFolder(dir string, e fs.DirEntry) bool {
	if strings.HasPrefix(e.Name(), ".") {
		return false
	}
	info, err := os.Stat(filepath.Join(dir, e.Name()))
	return err == nil && info.IsDir()
}

// list adds the images below the folder of a class.
func (f *Folder) list(dir string, class int) error {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !d.IsDir() && isImage(d.Name()):
			f.files, f.labels = append(f.files, path), append(f.labels, class)
		}
		return nil
	})
}

func isImage(name string) bool {
	ending := strings.ToLower(filepath.Ext(name))
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".png", ".jpg", ".jpeg"}, ending)
}

// Len implements data.Dataset.
func (f *Folder) Len() int { return len(f.files) }

// Classes is the number of folders.
func (f *Folder) Classes() int { return len(f.names) }

// Names are those of the folders.
func (f *Folder) Names() []string { return f.names }

// Get implements data.Dataset. The error names the file.
func (f *Folder) Get(i int) (Image, error) {
	if i < 0 || i >= f.Len() {
		return Image{}, fmt.Errorf("index %d is outside a folder of %d images", i, f.Len())
	}
	x, err := ReadFile(f.files[i])
	if err != nil {
		return Image{}, err
	}
	x.Label = int64(f.labels[i])
	return x, nil
}

// ReadFile reads an image from a PNG or JPEG file, in three channels: grey ones have three equal ones, and transparency
// is dropped, as Pillow's convert("RGB") does.
func ReadFile(path string) (Image, error) {
	raw, err := vfs.ReadFile(vfs.OS, path, maxFile)
	if err != nil {
		return Image{}, fmt.Errorf("images: %w", err)
	}
	size, _, err := image.DecodeConfig(bytes.NewReader(raw))
	most := min(max(leastPixels, perByte*len(raw)), maxPixels)
	if err == nil && (size.Width < 1 || size.Height < 1 || size.Width > most/size.Height) {
		err = fmt.Errorf("it has %d×%d pixels in %d bytes: want at most %d pixels", size.Width, size.Height, len(raw),
			most)
	}
	var decoded image.Image
	if err == nil {
		decoded, _, err = image.Decode(bytes.NewReader(raw))
	}
	if errors.Is(err, image.ErrFormat) {
		err = errors.New("it is neither PNG nor JPEG, although its name says so")
	}
	if err != nil {
		return Image{}, fmt.Errorf("images: %s: %w", path, err)
	}
	return fromImage(decoded), nil
}

// fromImage takes red, green and blue out of a decoded image.
func fromImage(m image.Image) Image {
	b := m.Bounds()
	x := Image{Channels: 3, Height: b.Dy(), Width: b.Dx()}
	plane := x.Height * x.Width
	x.Pixels = make([]uint8, 3*plane)
	for y := range x.Height {
		for i := range x.Width {
			r, g, bl := rgb(m, b.Min.X+i, b.Min.Y+y)
			at := y*x.Width + i
			x.Pixels[at], x.Pixels[plane+at], x.Pixels[2*plane+at] = r, g, bl
		}
	}
	return x
}

// rgb is the color of a pixel, without its transparency.
func rgb(m image.Image, x, y int) (r, g, b uint8) {
	switch m := m.(type) {
	case *image.YCbCr:
		c := m.YCbCrAt(x, y)
		return color.YCbCrToRGB(c.Y, c.Cb, c.Cr)
	case *image.NRGBA:
		c := m.NRGBAAt(x, y)
		return c.R, c.G, c.B
	case *image.Gray:
		v := m.GrayAt(x, y).Y
		return v, v, v
	}
	c := color.NRGBAModel.Convert(m.At(x, y)).(color.NRGBA) // that is what it makes
	return c.R, c.G, c.B
}
