// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Pretrained is the folder of a saved model: the model, its tokenizer, and the files beside the weights.
type Pretrained[M Configured] struct {
	Dir       string
	Model     M
	Tokenizer *tokenizers.Tokenizer // nil if the model reads no tokens (TokenReader)
	Files     []Sidecar             // what training leaves unchanged: for trainer.WithSidecars
}

// OpenPretrained loads a saved model as LoadPretrained does, with its tokenizer and the files beside its weights, for a
// program that needs a model of type M; want names that type in the error for a model of another one. Call it before
// reading data. It reads the weights last, so a folder of another model, or a tokenizer with more tokens than the
// model, fails quickly even for a large model.
func OpenPretrained[M Configured](dev *tensor.Device, dir, want string, opts ...LoadOption) (*Pretrained[M], error) {
	p := &Pretrained[M]{Dir: dir}
	look := func(o *loadOptions) {
		o.look = func(m Configured) (err error) {
			if _, ok := m.(M); !ok {
				return fmt.Errorf("%s is a %s: want %s", dir, Architecture(m), want)
			}
			if r, ok := m.(TokenReader); ok {
				p.Tokenizer, err = loadTokenizer(dir, r)
			}
			if err == nil {
				p.Files, err = Sidecars(dir)
			}
			return err
		}
	}
	m, err := LoadPretrained(dev, dir, append(opts[:len(opts):len(opts)], look)...)
	if err != nil {
		return nil, err
	}
	p.Model = m.(M) // as its factory made it before
	return p, nil
}

// File is one of Files by its name. The error for a file that the folder lacks wraps fs.ErrNotExist.
func (p *Pretrained[M]) File(name string) ([]byte, error) {
	for _, f := range p.Files {
		if f.Name == name {
			return f.Data, nil
		}
	}
	return nil, &fs.PathError{Op: "open", Path: filepath.Join(p.Dir, name), Err: fs.ErrNotExist}
}
