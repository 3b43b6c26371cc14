// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestWrappedMemoryStaysWithItsOwner(t *testing.T) {
	d := New(1)
	defer d.Close()
	raw := make([]byte, 256+alignment)
	skip := int(-uintptr(unsafe.Pointer(&raw[0])) & (alignment - 1))
	mem := raw[skip : skip+256]
	b := d.Wrap(mem, nil)
	s := d.NewStream()
	s.Write(b, 8, []byte{1, 2, 3})
	require.Equal(t, []byte{1, 2, 3}, mem[8:11])
	mem[9] = 7
	require.Equal(t, byte(7), d.HostBytes(b)[9])
	require.Zero(t, d.Stats().InUse)
	d.Free(b)
	require.Equal(t, byte(7), mem[9])
	fresh, err := d.Alloc(256)
	require.NoError(t, err)
	require.NotEqual(t, unsafe.Pointer(&mem[0]), unsafe.Pointer(&d.HostBytes(fresh)[0]),
		"freed foreign memory is not handed out")
	require.Panics(t, func() { d.Free(b) }, "freed twice")
	require.Panics(t, func() { d.Wrap(raw[skip+1:skip+64], nil) }, "not aligned")
}
