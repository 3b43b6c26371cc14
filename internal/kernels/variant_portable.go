// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || noasm

package kernels

import "fmt"

var compiled = []Variant{Generic}

func missing(v Variant) []string {
	if v == Generic {
		return nil
	}
	return []string{fmt.Sprintf("%s kernels in this build", v)}
}

// Has reports false: this build has no kernels for features of amd64.
func Has(Feature) bool { return false }

func dataCache(uint32) (ways, size int) { return 0, 0 }
