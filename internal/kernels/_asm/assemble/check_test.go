// SPDX-License-Identifier: Apache-2.0

package assemble

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// emitted is what Write says of a function with that body.
func emitted(t *testing.T, name string, body func(f *File)) error {
	t.Helper()
	f := New("kernels")
	f.Function(name)
	f.SignatureExpr("func(x *float32)")
	body(f)
	f.RET()
	return f.Write(t.TempDir(), "kernels")
}

// sum adds as many registers as are given, all of which are in use until then.
func sum(registers int) func(f *File) {
	return func(f *File) {
		x := f.GP64()
		f.Load(f.Param("x"), x)
		var all []reg.VecVirtual
		for i := range registers {
			all = append(all, f.YMM())
			f.VMOVUPS(operand.Mem{Base: x, Disp: 32 * i}, all[i])
		}
		for _, y := range all[1:] {
			f.VADDPS(y, all[0], all[0])
		}
		f.VMOVUPS(all[0], operand.Mem{Base: x})
	}
}

func TestCheckKnowsRegisters(t *testing.T) {
	for registers, want := range map[int]string{
		16: "",
		17: "sumAVX2: VMOVUPS with Y16 is encoded for AVX-512, which a kernel of AVX2 may not use",
	} {
		if err := emitted(t, "sumAVX2", sum(registers)); message(err) != want {
			t.Errorf("%d registers: %q: want %q", registers, message(err), want)
		}
	}
	if err := emitted(t, "sumAVX512", sum(17)); err != nil {
		t.Error(err)
	}
}

func TestCheckKnowsInstructions(t *testing.T) {
	for _, c := range []struct {
		name string
		body func(f *File)
		want string
	}{
		{"aAVX2", func(f *File) { f.VPTERNLOGD(operand.Imm(0), reg.Y0, reg.Y1, reg.Y2) }, "needs AVX512"},
		{"aAVX2", func(f *File) { f.VPXORD(reg.Z0, reg.Z1, reg.Z2) }, "VPXORD needs AVX512F"},
		{"aAVX2", func(f *File) { f.KORTESTW(reg.K1, reg.K2) }, "KORTESTW needs AVX512F"},
		{"aAVX2", func(f *File) { f.BZHIQ(reg.RAX, reg.RBX, reg.RCX) }, "BZHIQ needs BMI2"},
		{"aAVX512", func(f *File) { f.VPDPWSSD(reg.Z0, reg.Z1, reg.Z2) }, "VPDPWSSD needs AVX512VNNI"},
		{"a", func(f *File) { f.VMOVUPS(reg.Y0, reg.Y1) }, "AVX, which a function whose name says no variant"},
		{"aAVX2AVX512", func(*File) {}, `names several variants: ["AVX2" "AVX512"]`},
		{"aAVX2", func(f *File) { f.VFMADD231PS(reg.Y0, reg.Y1, reg.Y2) }, ""},
		{"aAVX512", func(f *File) { f.VPTERNLOGD(operand.Imm(0), reg.Y0, reg.Y1, reg.Y2) }, ""},
		{"a", func(f *File) { f.SFENCE() }, ""},
	} {
		err := emitted(t, c.name, c.body)
		if (err == nil) != (c.want == "") || !strings.Contains(message(err), c.want) {
			t.Errorf("%s: %q: want %q", c.name, message(err), c.want)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprint(err)
}
