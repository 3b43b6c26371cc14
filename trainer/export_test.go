package trainer

import "github.com/lockstep-ml/lockstep/internal/vfs"

// WithFileSystem keeps checkpoints on another file system.
func WithFileSystem(fsys vfs.FS) Option { return func(t *Trainer) { t.fsys = fsys } }
