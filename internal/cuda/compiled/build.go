// SPDX-License-Identifier: Apache-2.0

//go:build cuda && linux

package compiled

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/cuda/kernels"
)

//go:embed cpp
var cpp embed.FS

// flags of the C++ compiler: arithmetic is not contracted, as in kernels.Flags.
var flags = []string{"-std=c++17", "-O1", "-w", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing",
	"-include", "shim.h", "-x", "c++"}

// Build compiles the sources of the kernels, which lie in a folder, by a C++ compiler, and links them as a shared
// library in dir.
func Build(compiler, sources, dir string) (library string, err error) {
	if err := os.CopyFS(dir, cpp); err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "cpp")
	files, err := filepath.Glob(filepath.Join(sources, "*.cu*"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		family := strings.TrimSuffix(filepath.Base(file), ".cu")
		plain, err := translate(string(text))
		if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		plain += registry(family)
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(plain), 0o600); err != nil {
			return "", err
		}
	}
	names := []string{"shim"}
	for _, f := range kernels.Families() {
		names = append(names, f.Name)
	}
	errs := make([]error, len(names))
	var all sync.WaitGroup
	room := make(chan struct{}, runtime.NumCPU())
	arguments := []string{"-shared", "-o", "libkernels.so"}
	for i, name := range names {
		source, object := name+".cu", name+".o"
		if name == "shim" {
			source = "shim.cpp"
		}
		arguments = append(arguments, object)
		all.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			errs[i] = run(dir, compiler, slices.Concat(flags, []string{"-c", source, "-o", object})...)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	return filepath.Join(dir, "libkernels.so"), run(dir, compiler, arguments...)
}

func run(dir, name string, arguments ...string) error {
	c := exec.Command(name, arguments...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
	}
	return nil
}

// registry is what makes a family's kernels known by their names.
func registry(family string) string {
	b := &strings.Builder{}
	for _, f := range kernels.Families() {
		if f.Name != family {
			continue
		}
		for _, k := range f.Kernels {
			fmt.Fprintf(b, "static shim::Kernel kernel_%s(%q, shim::kernel(%s));\n", k, k, k)
		}
	}
	return b.String()
}

var (
	dynamic  = regexp.MustCompile(`extern __shared__ (?:__align__\(\d+\) )?char (\w+)\[\];`)
	assembly = regexp.MustCompile(`\basm(?: volatile)?\(`)
	quoted   = regexp.MustCompile(`"([^"]*)"`)
	operand  = regexp.MustCompile(`^\s*"[=+]?\w"\((?s:(.*))\)\s*$`)
)

// translate makes C++ of a source: shared memory whose size a launch gives is the shim's, and an instruction of PTX is
// a call of the function of its name, with its results and then its operands.
func translate(text string) (string, error) {
	text = dynamic.ReplaceAllString(text, "#define $1 shim::dynamic")
	for {
		at := assembly.FindStringIndex(text)
		if at == nil {
			return text, nil
		}
		parts, end, err := split(text[at[1]:])
		if err != nil {
			return "", err
		}
		template := quoted.FindStringSubmatch(parts[0][0])
		if template == nil {
			return "", fmt.Errorf("no instruction in asm(%s", parts[0][0])
		}
		name, _, _ := strings.Cut(strings.TrimSuffix(template[1], ";"), " ")
		var operands []string
		for _, list := range parts[1:min(3, len(parts))] { // results, operands
			for _, o := range list {
				m := operand.FindStringSubmatch(o)
				if m == nil {
					return "", fmt.Errorf("operand %s of %s", o, name)
				}
				operands = append(operands, m[1])
			}
		}
		call := strings.ReplaceAll(name, ".", "_") + "(" + strings.Join(operands, ", ") + ")"
		text = text[:at[0]] + call + text[at[1]+end:]
	}
}

// split cuts what follows "asm(" at its colons, and each part at its commas. end is behind the closing parenthesis.
func split(text string) (parts [][]string, end int, err error) {
	depth, from := 1, 0
	list := []string{}
	add := func(to int) {
		if item := text[from:to]; strings.TrimSpace(item) != "" {
			list = append(list, item)
		}
		from = to + 1
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			n := strings.IndexByte(text[i+1:], '"')
			if n < 0 {
				return nil, 0, fmt.Errorf("no end of a string: %s", text[i:])
			}
			i += n + 1
		case c == '(' || c == '{':
			depth++
		case (c == ')' || c == '}') && depth > 1:
			depth--
		case c == ')':
			add(i)
			return append(parts, list), i + 1, nil
		case c == ',' && depth == 1:
			add(i)
		case c == ':' && depth == 1:
			add(i)
			parts, list = append(parts, list), []string{}
		}
	}
	return nil, 0, fmt.Errorf("no end of asm(%s", text)
}
