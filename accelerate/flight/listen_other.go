// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package flight

import "log/slog"

// listen does nothing: there is no such signal.
func listen(*slog.Logger) (stop func()) { return func() {} }
