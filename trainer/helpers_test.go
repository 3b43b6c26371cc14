package trainer_test

import (
	"io"
	"log/slog"
)

// quiet is a logger for runs whose messages nobody reads.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
