// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"io"
	"time"
)

// SetChunk sets how many bytes of a file a request brings.
func (c *Client) SetChunk(n int64) { c.chunk = n }

// SetWait replaces what waits between two tries.
func (c *Client) SetWait(f func(ctx context.Context, d time.Duration) error) { c.wait = f }

// SetSink replaces what files are written to.
func (c *Client) SetSink(f func(io.Writer) io.Writer) { c.sink = f }

// SetSpace replaces what is known about the space on a disk.
func (c *Client) SetSpace(n int64) { c.space = func(string) (int64, bool) { return n, true } }
