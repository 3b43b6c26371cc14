// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/lockstep-ml/lockstep/models/serve"
	"github.com/lockstep-ml/lockstep/program"
)

// answerRequests answers over HTTP until ctx ends.
func answerRequests(ctx context.Context, p *program.Process, a *ChatArguments, c *conversation) error {
	dir, err := filepath.Abs(c.base.Dir)
	if err != nil {
		return err
	}
	s := &serve.Chat{Name: strings.TrimSuffix(filepath.Base(dir), ".gguf"), Engine: c.engine,
		Tokenizer: c.base.Tokenizer, Template: c.template, Options: c.options,
		Context: c.base.Model.ContextLength(), APIKey: a.APIKey}
	err = serve.Listen(ctx, a.Serve, a.ServeRemote, s.Handler(), func(addr net.Addr) {
		p.Line("serving", s.Name, fmt.Sprintf("http://%s/v1", addr), "Ctrl-C ends")
	})
	if errors.Is(err, serve.ErrRemote) {
		return fmt.Errorf("%w, or --serve_remote", err)
	}
	return err
}
