// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// faulty is a kernel with %x = an address of 256 defined bytes, %t = the thread, %b = the block, %at = %x + 4·thread.
func faulty(body string) string {
	return `.version 9.0
.target sm_80
.address_size 64
.const .b32 fixed = 7;
.visible .entry k(.param .u64 x)
{
	.reg .pred %p, %q;
	.reg .b32 %t, %b, %v, %u;
	.reg .b64 %x, %at, %s, %w;
	.shared .align 16 .b8 tile[256];
	.shared .align 16 .b8 other[64];
	.local .align 8 .b8 depot[16];
	ld.param.u64 %x, [x];
	mov.u32 %t, %tid.x;
	mov.u32 %b, %ctaid.x;
	mul.wide.u32 %at, %t, 4;
	mov.u64 %s, tile;
	add.s64 %s, %s, %at;
	add.s64 %at, %x, %at;
` + body + "\n\tret;\n}\n"
}

// TestFaults plants one mistake in each kernel, in the line marked "here".
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name   string
		body   string
		launch Launch
		kind   Kind
		block  uint32
		thread uint32
		msg    string
	}{
		{"register", "add.s32 %u, %v, 1; // here", Launch{}, UndefinedRegister, 0, 0, "%v is read"},
		{"register of some lanes", `setp.lt.u32 %p, %t, 5;
			@%p mov.u32 %v, 1;
			add.s32 %u, %v, 1; // here`, Launch{}, UndefinedRegister, 0, 5, "%v is read"},
		{"register through mov", `mov.u32 %u, %v;
			st.global.u32 [%at], %u; // here`, Launch{}, UndefinedRegister, 0, 0, "%u"},
		{"predicate", "@%p bra L; // here\nL:", Launch{}, UndefinedRegister, 0, 0, "%p"},
		{"guard", "@%p mov.u32 %v, 0; // here", Launch{}, UndefinedRegister, 0, 0, "%p"},
		{"carry", "addc.u32 %v, %t, 0; // here", Launch{}, UndefinedRegister, 0, 0, "carry"},
		{"wide register", "ld.global.u32 %v, [%w]; // here", Launch{}, UndefinedRegister, 0, 0, "%w"},
		{"undefined global", "ld.global.u32 %v, [%at+256]; // here", Launch{}, UndefinedMemory, 0, 0, "byte 0 of 4"},
		{"undefined global vector", `ld.global.v2.u32 {%v, %u}, [%x+252]; // here`, Launch{}, Misaligned, 0, 0, "multiple of 8"},
		{"undefined part", `ld.global.v4.u32 {%v, %u, _, _}, [%x+240];
			 ld.global.v2.u32 {%v, %u}, [%x+256]; // here`, Launch{}, UndefinedMemory, 0, 0, "byte 0"},
		{"undefined shared", `ld.shared.u32 %v, [%s]; // here`, Launch{}, UndefinedMemory, 0, 0, "has not been written"},
		{"undefined local", `ld.local.u32 %v, [depot+4]; // here`, Launch{}, UndefinedMemory, 0, 0, "has not been written"},
		{"undefined atomic", `red.shared.add.u32 [tile], 1; // here`, Launch{}, UndefinedMemory, 0, 0, "has not been written"},
		{"bounds", `st.global.u32 [%at+500], 1; // here`, Launch{}, OutOfBounds, 0, 3, "byte 512 of the allocation of 512 bytes"},
		{"before the beginning", `st.global.u32 [%x+-4], 1; // here`, Launch{}, OutOfBounds, 0, 0, "nothing is allocated"},
		{"bounds in a later block", `setp.eq.u32 %p, %b, 3;
			@%p add.s64 %at, %at, 512;
			ld.global.u32 %v, [%at]; // here`, Launch{Grid: [3]uint32{5, 1, 1}, Workers: 2}, OutOfBounds, 3, 0, "byte 512"},
		{"null", `mov.u64 %w, 0;
			ld.global.u32 %v, [%w]; // here`, Launch{}, OutOfBounds, 0, 0, "nothing is allocated"},
		{"generic null", `mov.u64 %w, 0;
			ld.u32 %v, [%w]; // here`, Launch{}, OutOfBounds, 0, 0, "nothing is allocated"},
		{"shared bounds", "st.shared.u32 [%s+100000], 1; // here", Launch{}, OutOfBounds, 0, 0, "shared memory"},
		{"shared variable", `st.shared.u32 [%s+252], 1; // here`, Launch{}, OutOfBounds, 0, 1, "byte 256 of tile (256 bytes)"},
		{"local bounds", `st.local.u64 [depot+16], %x; // here`, Launch{}, OutOfBounds, 0, 0, "beyond a variable of local"},
		{"misaligned", "ld.global.u32 %v, [%at+2]; // here", Launch{}, Misaligned, 0, 0, "no multiple of 4"},
		{"misaligned shared", `st.shared.v4.u32 [%s], {%t, %t, %t, %t}; // here`, Launch{}, Misaligned, 0, 1, "no multiple of 16"},
		{"constant", "mov.u64 %w, fixed;\nst.global.u32 [%w], 1; // here", Launch{}, ReadOnly, 0, 0, "fixed"},
		{"shared race", `st.shared.u32 [%s], %t;
			xor.b32 %v, %t, 32;
			mul.wide.u32 %w, %v, 4;
			mov.u64 %s, tile;
			add.s64 %s, %s, %w;
			setp.ge.u32 %p, %t, 32;
			@%p ld.shared.u32 %u, [%s]; // here`, Launch{Block: [3]uint32{64, 1, 1}}, SharedRace, 0, 32, "byte 0 of shared memory: warp 0 wrote it"},
		{"shared write after read", `st.shared.u32 [%s], %t;
			bar.sync 0;
			ld.shared.u32 %u, [tile];
			setp.ge.u32 %p, %t, 32;
			@%p st.shared.u32 [tile], 5; // here`, Launch{Block: [3]uint32{64, 1, 1}}, SharedRace, 0, 32, "warp 0 read it"},
		{"shared bytes", `cvt.u64.u32 %w, %t;
			mov.u64 %s, tile;
			add.s64 %s, %s, %w;
			st.shared.u8 [%s], %t;
			setp.eq.u32 %p, %t, 33;
			@%p st.shared.u8 [%s+-2], %t; // here`, Launch{Block: [3]uint32{64, 1, 1}}, SharedRace, 0, 33, "byte 31 of shared memory: warp 0"},
		{"atomic and read", `st.shared.u32 [%s], %t;
			bar.sync 0;
			red.shared.add.u32 [tile], 1; // here
			ld.shared.u32 %u, [tile];`, Launch{Block: [3]uint32{64, 1, 1}}, SharedRace, 0, 32, "warp 0 read it"},
		{"blocks write", `st.global.u32 [%at], 1; // here`, Launch{Grid: [3]uint32{2, 1, 1}, CheckRaces: true}, GlobalRace, 1, 0, "block 0 wrote it"},
		{"blocks read and write", `setp.eq.u32 %p, %b, 0;
			@%p ld.global.u32 %v, [%at+4];
			@!%p st.global.u32 [%at], 1; // here`, Launch{Grid: [3]uint32{2, 1, 1}, CheckRaces: true}, GlobalRace, 1, 1, "another block read it"},
		{"blocks atomic and plain", `red.global.add.u32 [%x], 1; // here
			ld.global.u32 %v, [%x];`, Launch{Grid: [3]uint32{2, 1, 1}, CheckRaces: true}, GlobalRace, 1, 0, ""},
		{"exit before a barrier", `setp.lt.u32 %p, %t, 32;
			@%p exit;
			bar.sync 0; // here`, Launch{Block: [3]uint32{64, 1, 1}}, Deadlock, 0, 32, "have exited"},
		{"half a warp before a barrier", `setp.lt.u32 %p, %t, 7;
			@%p exit;
			bar.sync 0; // here`, Launch{}, Deadlock, 0, 7, "have exited"},
		{"two barriers", `setp.lt.u32 %p, %t, 32;
			@%p bra L;
			bar.sync 1;
			bra M;
			L: bar.sync 2; // here
			M:`, Launch{Block: [3]uint32{64, 1, 1}}, Deadlock, 0, 0, "1 wait elsewhere"},
		{"divergent barrier", `setp.lt.u32 %p, %t, 7;
			@%p bra L;
			bar.sync 0; // here
			bra M;
			L: bar.sync 0;
			M:`, Launch{}, Deadlock, 0, 7, "lanes"},
		{"shuffle without partners", `mov.u32 %v, -1;
			setp.lt.u32 %p, %t, 7;
			@%p bra L;
			shfl.sync.bfly.b32 %u, %t, 1, 31, %v; // here
			bra M;
			L: mov.u32 %u, 0;
			bar.warp.sync -1;
			M:`, Launch{}, Deadlock, 0, 7, "lanes"},
		{"shuffle outside of its mask", `shfl.sync.bfly.b32 %u, %t, 1, 31, 1; // here`, Launch{}, BadSync, 0, 1, "lacks lane 1"},
		{"shuffle from nowhere", `setp.lt.u32 %p, %t, 7;
			@%p exit;
			shfl.sync.idx.b32 %u, %t, 0, 31, -1;
			st.global.u32 [%at], %u; // here`, Launch{}, UndefinedRegister, 0, 7, "%u"},
		{"copy not waited for", `cp.async.ca.shared.global [%s], [%at], 4;
			cp.async.commit_group;
			ld.shared.u32 %v, [%s]; // here
			cp.async.wait_all;`, Launch{}, UndefinedMemory, 0, 0, "has not been waited for"},
		{"copy of the last group", `cp.async.ca.shared.global [%s], [%at], 4;
			cp.async.commit_group;
			cp.async.ca.shared.global [%s+128], [%at], 4;
			cp.async.commit_group;
			cp.async.wait_group 1;
			ld.shared.u32 %v, [%s];
			ld.shared.u32 %v, [%s+128]; // here`, Launch{}, UndefinedMemory, 0, 0, "has not been waited for"},
		{"copy seen by another warp", `cp.async.ca.shared.global [%s], [%at], 4;
			cp.async.wait_all;
			ld.shared.u32 %v, [tile]; // here`, Launch{Block: [3]uint32{64, 1, 1}}, SharedRace, 0, 32, "warp 0 wrote it"},
		{"endless", `L: add.s32 %t, %t, 1;
			bra L; // here`, Launch{MaxInstructions: 100000}, Budget, 0, 0, "more than 100000"},
		{"trap", "trap; // here", Launch{}, Trap, 0, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := faulty(c.body)
			m, err := Parse(src)
			require.NoError(t, err)
			k, err := m.Kernel("k")
			require.NoError(t, err)
			d := newDevice(t)
			x := d.alloc(512)
			require.NoError(t, d.Write(x, make([]byte, 256)))
			for i := range 3 {
				c.launch.Grid[i] = max(c.launch.Grid[i], 1)
			}
			if c.launch.Block[0] == 0 {
				c.launch.Block = [3]uint32{32, 1, 1}
			}
			_, err = k.Run(d.Memory, c.launch, pack(t, k, x))
			var f *Fault
			require.ErrorAs(t, err, &f)
			require.Equal(t, c.kind, f.Kind, "%v", err)
			require.Contains(t, f.Msg, c.msg)
			require.Equal(t, [3]uint32{c.block, 0, 0}, f.Block, "%v", err)
			require.Equal(t, [3]uint32{c.thread, 0, 0}, f.Thread, "%v", err)
			if c.kind != Budget {
				before, _, _ := strings.Cut(src, "// here")
				require.Equal(t, strings.Count(before, "\n")+1, f.Line, "%v", err)
			}
			require.Equal(t, "k", f.Kernel)
			require.NotEmpty(t, f.Text)
		})
	}
}

// TestFreed: use after Free, also when it is freed twice.
func TestFreed(t *testing.T) {
	m, err := Parse(faulty("ld.global.u32 %v, [%at];"))
	require.NoError(t, err)
	k, err := m.Kernel("k")
	require.NoError(t, err)
	d := newDevice(t)
	x := d.put(make([]byte, 256))
	l := Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}
	_, err = k.Run(d.Memory, l, pack(t, k, x))
	require.NoError(t, err)
	require.NoError(t, d.Free(x))
	require.ErrorContains(t, d.Free(x), "freed before")
	require.ErrorContains(t, d.Free(x+4), "no allocation begins there")
	require.ErrorContains(t, d.Write(x, []byte{1}), "was freed")
	_, err = k.Run(d.Memory, l, pack(t, k, x))
	var f *Fault
	require.True(t, errors.As(err, &f))
	require.Equal(t, UseAfterFree, f.Kind)
	require.Contains(t, f.Msg, "the allocation of 256 bytes")
}

func TestMemory(t *testing.T) {
	m := NewMemory(1000)
	a, err := m.Alloc(600)
	require.NoError(t, err)
	require.Zero(t, a%256)
	_, err = m.Alloc(600)
	require.ErrorContains(t, err, "out of memory: 600 bytes wanted, 600 of 1000 are in use")
	_, err = m.Alloc(-1)
	require.ErrorContains(t, err, "must not be negative")
	defined, err := m.Defined(a, 600)
	require.NoError(t, err)
	require.False(t, defined)
	require.NoError(t, m.Write(a+10, []byte{1, 2, 3}))
	defined, err = m.Defined(a+10, 3)
	require.NoError(t, err)
	require.True(t, defined)
	require.ErrorContains(t, m.Write(a+598, []byte{1, 2, 3}), "byte 598 of the allocation of 600 bytes")
	require.ErrorContains(t, m.Read(make([]byte, 1), a+600), "byte 600")
	require.ErrorContains(t, m.Read(make([]byte, 1), 5), "nothing is allocated")
	require.NoError(t, m.Copy(a+100, a+9, 5))
	got := make([]byte, 3)
	require.NoError(t, m.Read(got, a+101))
	require.Equal(t, []byte{1, 2, 3}, got)
	defined, _ = m.Defined(a+100, 5)
	require.False(t, defined, "bytes beside those written")
	require.NoError(t, m.Undefine(a+10, 1))
	defined, _ = m.Defined(a+10, 1)
	require.False(t, defined)
	require.NoError(t, m.Define(a+10, 1))
	b, err := m.Bytes(a+11, 2)
	require.NoError(t, err)
	require.Equal(t, []byte{2, 3}, b)
	require.NoError(t, m.Free(a))
	require.Zero(t, m.Used())
}

func TestLaunchErrors(t *testing.T) {
	k := kernelOf(t, "adamw.ptx", "adamw")
	require.Equal(t, []Param{{"adamw_param_0", 0, 8, 8}, {"adamw_param_1", 8, 8, 8}, {"adamw_param_2", 16, 24, 4}},
		k.Params())
	require.Equal(t, 40, k.ParamBytes())
	one, mem := [3]uint32{1, 1, 1}, NewMemory(1)
	for want, l := range map[string]Launch{
		"grid (0,1,1): want 1 to":                       {Grid: [3]uint32{0, 1, 1}, Block: one},
		"block (2000,1,1): want 1 to":                   {Grid: one, Block: [3]uint32{2000, 1, 1}},
		"512 threads in a block: the kernel allows 256": {Grid: one, Block: [3]uint32{512, 1, 1}},
		"bytes of shared memory":                        {Grid: one, Block: one, SharedBytes: 1 << 20},
		"3 bytes of parameters: want 40":                {Grid: one, Block: one},
	} {
		_, err := k.Run(mem, l, make([]byte, 3))
		require.ErrorContains(t, err, want)
	}
	_, err := parseFile(t, "rows.ptx").Kernel("layernorm")
	require.ErrorContains(t, err, `no kernel "layernorm": the module has layer_norm, `)
}

// TestVariables: a module's variables are initialised once for each memory.
func TestVariables(t *testing.T) {
	m, err := Parse(`.version 9.0
.target sm_80
.address_size 64
.global .align 4 .b8 bytes[8] = {1, 2, 0xff};
.global .u32 words[2] = {5, -1};
.global .f32 floats[2] = {0f3F800000, 2.5};
.global .u64 pointer = words+4;
.const .u64 generics[1] = {generic(bytes)};
`)
	require.NoError(t, err)
	mem := NewMemory(1000)
	require.NoError(t, m.Load(mem))
	require.NoError(t, m.Load(mem))
	words, size, err := m.Symbol(mem, "words")
	require.NoError(t, err)
	require.Equal(t, 8, size)
	bytes, _, err := m.Symbol(mem, "bytes")
	require.NoError(t, err)
	for name, want := range map[string]any{"bytes": []byte{1, 2, 0xff, 0, 0, 0, 0, 0}, "words": []int32{5, -1},
		"floats": []float32{1, 2.5}, "pointer": []uint64{words + 4}, "generics": []uint64{bytes}} {
		addr, _, err := m.Symbol(mem, name)
		require.NoError(t, err)
		d := device{t, mem}
		switch want := want.(type) {
		case []byte:
			got := make([]byte, len(want))
			d.get(addr, got)
			require.Equal(t, want, got)
		case []int32:
			got := make([]int32, len(want))
			d.get(addr, got)
			require.Equal(t, want, got)
		case []float32:
			got := make([]float32, len(want))
			d.get(addr, got)
			require.Equal(t, want, got)
		case []uint64:
			got := make([]uint64, len(want))
			d.get(addr, got)
			require.Equal(t, want, got)
		}
	}
	_, _, err = m.Symbol(mem, "word")
	require.ErrorContains(t, err, `no variable "word": the module has words`)
	require.Error(t, mem.Free(words), "variables cannot be freed")
}

func TestParseErrors(t *testing.T) {
	for body, want := range map[string]string{
		"add.s32 %v, %nope, 1;":                      "line 20: register %nope is not declared",
		"add.s32 %v, %t 1;":                          `line 20: "1" where ";" was expected`,
		"@%t mov.u32 %v, 1;":                         `line 20: "%t" is not a predicate`,
		"L: L: ret;":                                 "label L is declared twice",
		".reg .b32 %t;\n.shared .b8 x[99999999999];": "larger than",
		"mov.u32 %v, 0f12;":                          `"0f12" is not a number`,
		"/* no end":                                  "comment without end",
		"{":                                          "the body of k has no end",
	} {
		_, err := Parse(faulty(body))
		require.ErrorContains(t, err, want, body)
	}
	for body, want := range map[string]string{

		"wgmma.fence.sync.aligned;":   "line 20: `wgmma.fence.sync.aligned;`: the interpreter does not know",
		"bra NOWHERE;":                "no label NOWHERE",
		"mov.u64 %w, nothing;":        "nothing is not declared",
		"add.s32 %v, %t;":             "2 operands: want 3",
		"add.s32 %v, %x, 1;":          "register %x has type b64, which does not fit",
		"call.uni nobody;":            "call of nobody, which the module does not define",
		"st.shared.u32 [fixed], 1;":   "fixed lies in another space",
		"ld.global.v2.u32 %v, [%at];": "1 registers: want 2",
		"setp.zz.s32 %p, %t, 1;":      "the interpreter does not know",
	} {
		m, err := Parse(faulty(body))
		require.NoError(t, err, body)
		_, err = m.Kernel("k")
		require.ErrorContains(t, err, want, body)
	}
}

// FuzzParse: no text makes the parser, the linker or a launch panic or run forever.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"rows.ptx", "adamw.ptx", "math.ptx", "flash.ptx"} {
		src, err := os.ReadFile("testdata/" + name)
		require.NoError(f, err)
		f.Add(string(src[:min(len(src), 6000)]))
	}
	f.Add(faulty("bar.sync 0; L: @%p bra L; shfl.sync.up.b32 %v|%p, %t, 1, 0, -1;"))
	src, err := os.ReadFile("testdata/adamw.ptx")
	require.NoError(f, err)
	f.Add(string(src))
	f.Add(faulty("cvt.u32.u16 %v;"))
	f.Add(snippet("mov.b64 {%d3, %e3}, %a; brx.idx %t, ts; ts: .branchtargets A; A: cp.async.wait_group 0;"))
	f.Fuzz(func(t *testing.T, src string) {
		m, err := Parse(src)
		if err != nil {
			return
		}
		mem := NewMemory(1 << 20)
		for _, name := range m.Kernels() {
			k, err := m.Kernel(name)
			if err != nil || k.LocalBytes() > 1<<16 || k.SharedBytes() > 1<<16 || k.ParamBytes() > 1<<16 {
				continue
			}
			_, _ = k.Run(mem, Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1},
				MaxInstructions: 10000, Workers: 1},
				make([]byte, k.ParamBytes()))
		}
	})
}
