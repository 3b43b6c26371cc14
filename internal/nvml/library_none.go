// SPDX-License-Identifier: Apache-2.0

//go:build !(nvml && cgo) && !(cuda && linux)

package nvml

// openLibrary finds nothing: the program was built without the tags that bring a library.
func openLibrary() (Library, error) { return nil, ErrNone }
