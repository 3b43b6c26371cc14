// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/args/configs"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/internal/terminal"
)

const configUsage = `usage: lockstep config FILE [FLAGS]

Shows what the keys of a configuration file mean here: one of DeepSpeed (--deepspeed FILE of a
training program), of FSDP in HuggingFace's form (--fsdp_config FILE), of accelerate
(lockstep launch --config_file FILE), accelerate's ParallelismConfig (--parallelism_config FILE) or
transformers' DistributedConfig (--distributed_config FILE). Each key is used, has no effect
here, or is refused because ignoring it would change the result. A key that the file lacks is
listed as "default" if the other tool's default changes the result. "auto" means the value of
the argument. The exit code is 1 if a key is refused or unknown.

`

// config shows a file of another tool.
func (p *program) config(argv []string) int {
	fs := pflag.NewFlagSet("config", pflag.ContinueOnError)
	asJSON := fs.Bool("json", false, "print JSON")
	if code, done := p.parse(fs, argv, configUsage); done {
		return code
	}
	if fs.NArg() != 1 {
		return p.usageError("config: %s: want one FILE", quantity.Of(fs.NArg(), "word"))
	}
	path := fs.Arg(0)
	c, err := args.ReadToolConfig(path)
	if err != nil {
		p.complain("lockstep: config: %v", err)
		return exitError
	}
	if *asJSON {
		encoder := json.NewEncoder(p.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(c); err != nil {
			p.complain("lockstep: config: %v", err)
			return exitError
		}
	} else {
		fmt.Fprintf(p.stdout, "%s: %s\n\n", path, c.Tool)
		p.showConfig(c)
	}
	if err := args.CheckToolConfig(c, path); err != nil {
		p.complain("lockstep: config: %v", err)
		return exitError
	}
	return exitOK
}

// showConfig prints the keys by their use: as a table, or on a terminal, which is too narrow for one, with the
// explanation of a key below it.
func (p *program) showConfig(c *configs.Config) {
	columns := terminal.Width(p.stdout)
	indent := strings.Repeat(" ", 11)
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for _, use := range []configs.Use{configs.Used, configs.Default, configs.NoEffect, configs.Refused} {
		for _, r := range c.Rows {
			switch {
			case r.Use != use:
			case columns == 0:
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Use, r.Key, shortened(r.Value), r.Text)
			default:
				head := fmt.Sprintf("%-*s", len(indent), r.Use)
				lines := terminal.Fold([]string{r.Key, shortened(r.Value)}, "  ", columns, head, indent)
				lines = append(lines, terminal.Fold([]string{r.Text}, "", columns, indent+"  ", indent+"  ")...)
				fmt.Fprintln(p.stdout, strings.Join(lines, "\n"))
			}
		}
	}
	w.Flush()
}

// shortened is a value for a table.
func shortened(value string) string {
	const most = 24
	if runes := []rune(value); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return value
}

// configFile sets the flags that are not given from accelerate's configuration file, and gives the variables with its
// settings for the program.
func configFile(fs *pflag.FlagSet, path string) (environ []string, err error) {
	if path == "" {
		return nil, nil
	}
	c, err := args.ReadToolConfig(path)
	if err != nil {
		return nil, err
	}
	if err := args.CheckToolConfig(c, path); err != nil {
		return nil, err
	}
	if c.Launch == nil {
		return nil,
			fmt.Errorf("%s is a configuration of %s: want accelerate's, or --deepspeed and --fsdp_config of the "+
				"program", path, c.Tool)
	}
	for flag, value := range c.Launch {
		if fs.Changed(flag) || flag == "rdzv_backend" && value == "c10d" {
			continue // hosts are found at master_addr either way
		}
		if err := fs.Set(flag, value); err != nil {
			return nil, fmt.Errorf("%s: %s is %q: %w", path, flag, value, err)
		}
	}
	settings, err := args.ToolSettings(c)
	if err != nil {
		return nil, err
	}
	for name, value := range settings {
		environ = append(environ, name+"="+value)
	}
	slices.Sort(environ)
	return environ, nil
}
