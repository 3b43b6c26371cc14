// SPDX-License-Identifier: Apache-2.0

package isa

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

const (
	root   = "../../.."
	module = "github.com/lockstep-ml/lockstep/"
)

// programs contain all assembly together.
var programs = []program{{".", "./examples/clm"}, {"bench", "./kernels"}}

// program is one of a module in a folder of the repository.
type program struct{ module, dir string }

// TestKernelsKeepToTheirVariants decodes every function of assembly in programs that it builds for amd64, on any
// machine. A kernel may need only what kernels.Needs of the variant in its name lists. What all kernels of a variant
// need together is that list.
func TestKernelsKeepToTheirVariants(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: no programs are built")
	}
	code := map[string][]byte{}
	for _, program := range programs {
		maps.Copy(code, functions(t, build(t, program)))
	}
	together := map[string]map[kernels.Feature]bool{}
	names := assembly(t)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Contains(t, code, name, "no program has this function: want one of %q to use it", programs)
		variant, needs, err := judge(path.Base(name), code[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if together[variant] == nil {
			together[variant] = map[kernels.Feature]bool{}
		}
		for _, f := range needs {
			together[variant][f] = true
		}
	}
	for variant, allowed := range variants {
		union := slices.Collect(maps.Keys(together[variant]))
		for _, before := range before[variant] {
			union = append(union, variants[before]...)
		}
		for _, f := range allowed {
			require.Contains(t, union, f, "no kernel of %q needs what the dispatcher requires for it", variant)
		}
	}
}

// variants are the features that functions may need, by the part of their names. AVX512BF16 is a choice within AVX512.
var variants = map[string][]kernels.Feature{
	"":           nil,
	"AVX2":       kernels.Needs(kernels.AVX2),
	"AVX512":     kernels.Needs(kernels.AVX512),
	"AVX512BF16": append(kernels.Needs(kernels.AVX512), kernels.FeatureAVX512BF16),
	"AMX":        kernels.Needs(kernels.AMX),
}

// before are the variants whose kernels run under another one, too.
var before = map[string][]string{
	"AVX512": {"AVX2"}, "AVX512BF16": {"AVX2", "AVX512"}, "AMX": {"AVX2", "AVX512", "AVX512BF16"},
}

var inName = regexp.MustCompile(`AVX512BF16|AVX512|AVX2|AMX`)

// judge returns the variant that a function's name gives and the features that its code needs; an error if it may not.
func judge(name string, code []byte) (variant string, needs []kernels.Feature, err error) {
	found := inName.FindAllString(name, -1)
	if len(found) > 1 {
		return "", nil, fmt.Errorf("names several variants: %q", found)
	}
	variant = strings.Join(found, "")
	if needs, err = Needs(code); err != nil {
		return variant, nil, err
	}
	for _, f := range needs {
		guarded := f == osxsave && strings.HasSuffix(name, ".xgetbv") // package kernels asks for OSXSAVE first
		if !guarded && !slices.Contains(variants[variant], f) {
			return variant, nil, fmt.Errorf("needs %s, which is not one of what a name with %q allows: %q", f, variant,
				variants[variant])
		}
	}
	return variant, needs, nil
}

// TestJudge is the control: a register above 15 or a name without a variant must not pass.
func TestJudge(t *testing.T) {
	low, high := []byte{0xc5, 0xfc, 0x10, 0x07}, []byte{0x62, 0xe1, 0x7c, 0x28, 0x10, 0x07} // VMOVUPS (DI), Y0 and Y16
	tile := []byte{0xc4, 0xe2, 0x78, 0x49, 0xc0}
	for _, c := range []struct {
		name  string
		code  []byte
		wrong string
	}{
		{"vecmath.expSumAVX2", low, ""},
		{"vecmath.expSumAVX2", high, `needs AVX512F, which is not one of what a name with "AVX2" allows`},
		{"vecmath.expSumAVX512", high, ""},
		{"vecmath.expSum", low, `needs AVX, which is not one of what a name with "" allows: []`},
		{"gemm.tilesAVX512", tile, "needs AMX_TILE"},
		{"gemm.tilesAMX", tile, ""},
		{"kernels.xgetbv", []byte{0x0f, 0x01, 0xd0}, ""},
		{"kernels.other", []byte{0x0f, 0x01, 0xd0}, "needs OSXSAVE"},
		{"gemm.bothAVX2AVX512", low, "several variants"},
		{"gemm.tornAVX2", low[:3], "ends within an instruction"},
		{"gemm.strangeAVX2", []byte{0x0f, 0xff, 0xc0}, "at byte 0: 0f ff c0: unknown instruction"},
	} {
		_, _, err := judge(c.name, c.code)
		if c.wrong == "" {
			require.NoError(t, err, c.name)
		} else {
			require.ErrorContains(t, err, c.wrong, c.name)
		}
	}
}

// build builds a program for amd64 and returns its path.
func build(t *testing.T, p program) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	c := exec.Command("go", "build", "-o", out, p.dir)
	c.Dir = filepath.Join(root, p.module)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1")
	said, err := c.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return out
}

// functions returns the code of the functions of assembly in a program, by import path within the module and name.
func functions(t *testing.T, program string) map[string][]byte {
	t.Helper()
	f, err := elf.Open(program)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.Symbols()
	require.NoError(t, err)
	text := f.Section(".text")
	data, err := text.Data()
	require.NoError(t, err)
	code := map[string][]byte{}
	for _, s := range symbols {
		name, ours := strings.CutPrefix(s.Name, module)
		if program, main := strings.CutPrefix(s.Name, "main."); main {
			name, ours = "main."+program, true
		}
		if name, stack := strings.CutSuffix(name, ".abi0"); ours && stack { // the calling convention of assembly
			from := s.Value - text.Addr
			code[name] = data[from : from+s.Size]
		}
	}
	return code
}

var textLine = regexp.MustCompile(`(?m)^TEXT\s+·(\w+)\(SB\)`)

// assembly returns the names of all functions in the module's files of assembly, as functions does.
func assembly(t *testing.T) []string {
	t.Helper()
	var names []string
	require.NoError(t, filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && file != root && (name[0] == '.' || name[0] == '_') {
			return filepath.SkipDir
		}
		if filepath.Ext(file) != ".s" {
			return nil
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		if pkg = filepath.ToSlash(pkg); strings.HasPrefix(pkg, "bench/") {
			pkg = "main"
		}
		found := textLine.FindAllSubmatch(source, -1)
		if n := strings.Count(string(source), "\nTEXT"); n != len(found) {
			return fmt.Errorf("%s: %d functions of %d are named as expected", file, len(found), n)
		}
		for _, m := range found {
			names = append(names, pkg+"."+string(m[1]))
		}
		return nil
	}))
	return names
}
