// SPDX-License-Identifier: Apache-2.0

// Touched prints the packages whose tests a change can affect, one per line; .ci/run tests them. The change is what
// lies between the commit at which the branch left main and the files of the working folder, committed or not. Where
// there is no such commit, as on main itself, or with CI_ALL=1, these are all packages.
//
// With -concurrent it prints those packages, of all, in which goroutines may meet; .ci/run tests them with the race
// detector.
//
// It reads the Go files of the module in the working folder, under every build tag, and runs nothing but git.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	meet := flag.Bool("concurrent", false, "print the packages in which goroutines may meet")
	flag.Parse()
	list := run
	if *meet {
		list = concurrent
	}
	if err := list(".", os.Stdout, os.Stderr); err != nil {
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
	return lines(out, list)
}

func concurrent(dir string, out, _ io.Writer) error {
	m, err := read(os.DirFS(dir))
	if err != nil {
		return err
	}
	return lines(out, m.concurrent())
}

func lines(out io.Writer, list []string) error {
	for _, p := range list {
		if _, err := fmt.Fprintln(out, p); err != nil {
			return err
		}
	}
	return nil
}
