// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/hub"
	"github.com/lockstep-ml/lockstep/models"
)

// hubModel is a saved model: that of a path, or one of HuggingFace's Hub, which it downloads into the cache. A word
// without an organisation is a path.
func (p *program) hubModel(ctx context.Context, nameOrPath, revision string) (string, error) {
	if !strings.Contains(nameOrPath, "/") {
		return nameOrPath, nil
	}
	c, err := p.hubClient()
	if err != nil {
		return "", err
	}
	return c.Model(ctx, nameOrPath, revision)
}

// hubConfig is the path of a model's configuration: of a model of the Hub this file alone is downloaded.
func (p *program) hubConfig(ctx context.Context, nameOrPath, revision string) (string, error) {
	if _, err := os.Stat(nameOrPath); err == nil || !strings.Contains(nameOrPath, "/") || !hub.IsName(nameOrPath) {
		return nameOrPath, nil // names without an organisation are those of package models
	}
	c, err := p.hubClient()
	if err != nil {
		return "", err
	}
	return c.File(ctx, hub.Repo{Kind: hub.Models, Name: nameOrPath, Revision: revision}, models.ConfigFile)
}

func (p *program) hubClient() (*hub.Client, error) {
	c, err := hub.FromEnvironment()
	if err == nil {
		c.Progress = func(_ string, bytes int64) hub.Meter { return &download{shown: p.progress(), total: bytes} }
	}
	return c, err
}

// download shows how far a file is. Its parts arrive on several goroutines.
type download struct {
	mu          sync.Mutex
	shown       *progress
	done, total int64
}

// Add implements hub.Meter.
func (d *download) Add(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done += n
	d.shown.show(d.done, d.total)
}

// Close implements hub.Meter.
func (d *download) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shown.end()
}
