// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/pflag"
)

// version shows what this binary was built from.
func (p *program) version(argv []string) int {
	fs := pflag.NewFlagSet("version", pflag.ContinueOnError)
	if code, done := p.parse(fs, argv, "usage: lockstep version\n"); done {
		return code
	}
	if code, done := p.noWords(fs); done {
		return code
	}
	b := readBuild()
	fmt.Fprintf(p.stdout, "lockstep %s, %s, %s\n", b.Version, b.Go, b.Platform)
	return exitOK
}

// build is what a binary was built from.
type build struct {
	Version  string `json:"version"` // of the module, with the commit if it is known
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	setting := map[string]string{}
	for _, s := range info.Settings {
		setting[s.Key] = s.Value
	}
	if commit := setting["vcs.revision"]; commit != "" {
		b.Version += " " + commit[:min(len(commit), 12)]
		if setting["vcs.modified"] == "true" {
			b.Version += " with changes"
		}
	}
	return b
}
