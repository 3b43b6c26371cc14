// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"slices"
	"testing"
)

// connector is the only file of accelerate that reads the arguments: it makes a plan of them, in accelerate's words.
const connector = "accelerate/connector.go"

// argumentReaders reports other files of accelerate that import args.
func argumentReaders(f file) []string {
	if f.test || !within(f.dir, "accelerate") || f.name == connector || !slices.Contains(f.imports(), module+"/args") {
		return nil
	}
	return []string{fmt.Sprintf("%s imports args: want the plan that %s makes of the arguments", f.name, connector)}
}

func TestArgumentsAreReadByTheConnector(t *testing.T) {
	requireNone(t, argumentReaders)
	const fault = " imports args: want the plan that accelerate/connector.go makes of the arguments"
	requireBites(t, argumentReaders, "accelerate/a.go", imported("args"), "accelerate/a.go"+fault)
	requireBites(t, argumentReaders, "accelerate/launch/a.go", imported("args"), "accelerate/launch/a.go"+fault)
	requireBites(t, argumentReaders, connector, imported("args"), "")
	requireBites(t, argumentReaders, "accelerate/a_test.go", imported("args"), "")
	requireBites(t, argumentReaders, "trainer/a.go", imported("args"), "")
}
