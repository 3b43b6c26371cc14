// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "chaos: want Linux: processes are found in /proc, and hosts and disks are namespaces")
	os.Exit(1)
}
