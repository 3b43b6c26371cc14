// SPDX-License-Identifier: Apache-2.0

// Touched prints the packages whose tests a change can affect, one per line; .ci/run tests them. The change is what
// lies between the commit at which the branch left main and the files of the working folder, committed or not. Where
// there is no such commit, as on main itself, or with CI_ALL=1, these are all packages.
//
// It reads the Go files of the module in the working folder, under every build tag, and runs nothing but git.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(".", os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "touched:", err)
		os.Exit(1)
	}
}

func run(dir string, out, log io.Writer) error {
	m, err := read(os.DirFS(dir))
	if err != nil {
		return err
	}
	list := m.all()
	if os.Getenv("CI_ALL") != "" {
		fmt.Fprintln(log, "all packages: CI_ALL is set")
	} else if base, files, err := changed(dir); err != nil {
		fmt.Fprintln(log, "all packages:", err)
	} else {
		list = m.touched(files)
		fmt.Fprintf(log, "%d of %d packages: changes since %s\n", len(list), len(m.packages), base)
	}
	for _, p := range list {
		if _, err := fmt.Fprintln(out, p); err != nil {
			return err
		}
	}
	return nil
}
