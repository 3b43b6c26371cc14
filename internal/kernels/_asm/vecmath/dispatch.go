// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/kernels/_asm/assemble"
)

// dispatchers returns the Go files that choose a variant: one for amd64 with assembly, one for everything else.
func dispatchers(kernels []kernel) (amd64, portable []byte, err error) {
	var a, p bytes.Buffer
	head := assemble.Header("vecmath") + "\n\n//go:build %s\n\npackage vecmath\n"
	fmt.Fprintf(&a, head+"\nimport %q\n", "!noasm", "github.com/lockstep-ml/lockstep/internal/kernels")
	fmt.Fprintf(&p, head, "!amd64 || noasm")
	for _, k := range kernels {
		doc := fmt.Sprintf("\n// %sVector: %s for as many of n elements as fill blocks of %d; it returns how many it "+
			"did, 0 under the generic variant.\n", k.name, k.formula, block)
		signature := fmt.Sprintf("func %sVector(%s) int", k.name, k.declarations())
		var arguments, others []string
		for _, q := range k.params {
			argument := q.name
			if q.kind == stream {
				argument = "element(" + q.name + ", done)"
				if q.name != "dst" {
					others = append(others, q.name)
				}
			}
			arguments = append(arguments, argument)
		}
		list := strings.Join(arguments, ", ")
		if k.nonTemporal {
			list += ", nonTemporal"
			doc += "// nonTemporal writes dst by non-temporal stores, if it is aligned to 64 bytes and none of the " +
				"operands.\n"
		}
		fmt.Fprintf(&a, "%s%s {\n\tvariant := kernels.Vectors()\n\tif variant == kernels.Generic {\n\t\treturn "+
			"0\n\t}\n\tn -= n %% %d\n", doc, signature, block)
		if k.nonTemporal {
			fmt.Fprintf(&a, "nonTemporal = nonTemporal && separate(dst, %s)\n", strings.Join(others, ", "))
		}
		fmt.Fprintf(&a, "for done := 0; done < n; done += stretch {\ncount := min(stretch, n-done)\n"+
			"if variant == kernels.AVX512 {\n%sAVX512(count, %s)\n} else {\n%sAVX2(count, %s)\n}\n}\nreturn n\n}\n",
			k.name, list, k.name, list)
		var blanks []string
		for _, q := range k.params {
			blanks = append(blanks, strings.Replace(q.declaration(), q.name, "_", 1))
		}
		if k.nonTemporal {
			blanks = append(blanks, "_ bool")
		}
		fmt.Fprintf(&p, "\n// %sVector does nothing.\nfunc %sVector(_ int, %s) int { return 0 }\n", k.name, k.name,
			strings.Join(blanks, ", "))
	}
	if amd64, err = assemble.Format(a.Bytes()); err != nil {
		return nil, nil, err
	}
	portable, err = assemble.Format(p.Bytes())
	return amd64, portable, err
}
