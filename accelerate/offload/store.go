// SPDX-License-Identifier: Apache-2.0

// Package offload keeps CPU tensors in files instead of memory, such as an optimizer state that is larger than the
// machine's memory. The files are mapped, so the system writes pages that do not fit to disk and reads them again on
// use. If that fails, the computation fails with an error that names the folder. A step that reads offloaded tensors in
// order runs at the disk's speed; the bits are those of tensors in memory. The files have no names and vanish with the
// process.
package offload

import (
	"errors"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/internal/mapped"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Store is a folder for tensors. It belongs to one goroutine.
type Store struct {
	dir   string
	files [][]byte // mapped
	bytes int64
}

// New makes a store in a folder, which is made if it is not there.
func New(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("offload: %w", err)
	}
	return &Store{dir: dir}, nil
}

// Zeros makes a tensor of zeros in a new file. It reserves the disk's space, so that a lack of it is an error here and
// not the end of the process later. c is a context of a device that computes in host memory.
func (s *Store) Zeros(c *tensor.Ctx, dt tensor.DType, shape ...int) (t *tensor.Tensor, err error) {
	n := dt.Size()
	for _, d := range shape {
		n *= d
	}
	if n == 0 {
		return t, tensor.Try(func() { t = tensor.Zeros(c, dt, shape...) })
	}
	memory, err := mapFile(s.dir, n)
	if err != nil {
		return nil, fmt.Errorf("offload: %d bytes in %s: %w", n, s.dir, err)
	}
	s.files, s.bytes = append(s.files, memory), s.bytes+int64(n)
	mapped.Register(memory, fmt.Sprintf("offload: a file of %d bytes without a name in %s", n, s.dir))
	ok := false
	if err := tensor.Try(func() { t, ok = tensor.FromHost(c, memory[:n:n], dt, shape...) }); err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("offload: the device %s does not compute in host memory: want one that does, such as "+
			"the CPU",
			c.Device().Name())
	}
	return t, nil
}

// Bytes is the size of all tensors in the store.
func (s *Store) Bytes() int64 { return s.bytes }

// Close gives the files up. Nothing may use the tensors afterwards.
func (s *Store) Close() error {
	var errs []error
	for _, m := range s.files {
		mapped.Forget(m)
		errs = append(errs, unmapFile(m))
	}
	s.files, s.bytes = nil, 0
	return errors.Join(errs...)
}
