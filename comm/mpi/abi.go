// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package mpi

import "github.com/ebitengine/purego"

// abi is what a library's header says: how handles and constants look. The functions' names and the order of their
// arguments are the same in all of them.
type abi struct {
	name                       string
	world, bytes, errorsReturn uintptr
	ignoreStatus               uintptr
	serialized, multiple       int32 // thread levels: calls from any thread, one at a time or at once
	float, double, sum         uintptr
	inPlace                    uintptr
}

// standardABI is that of MPI 5.0, section 20: handles are small numbers.
var standardABI = abi{name: "MPI 5 ABI", world: 0x101, bytes: 0x247, errorsReturn: 0x143, serialized: 2048,
	multiple: 4096, float: 0x210, double: 0x214, sum: 0x21, inPlace: 1}

// mpichABI is that of MPICH, Intel MPI, MVAPICH and Cray MPICH: handles are ints.
var mpichABI = abi{name: "MPICH", world: 0x44000000, bytes: 0x4c00010d, errorsReturn: 0x54000001, ignoreStatus: 1,
	serialized: 2, multiple: 3, float: 0x4c00040a, double: 0x4c00080b, sum: 0x58000003, inPlace: ^uintptr(0)}

// openMPIABI is Open MPI's: handles are the addresses of objects that the library exports.
func openMPIABI(handle uintptr) (a abi, err error) {
	a.name, a.serialized, a.multiple, a.inPlace = "Open MPI", 2, 3, 1
	for symbol, field := range map[string]*uintptr{
		"ompi_mpi_comm_world": &a.world, "ompi_mpi_byte": &a.bytes, "ompi_mpi_errors_return": &a.errorsReturn,
		"ompi_mpi_float": &a.float, "ompi_mpi_double": &a.double, "ompi_mpi_op_sum": &a.sum,
	} {
		if *field, err = purego.Dlsym(handle, symbol); err != nil {
			return a, err
		}
	}
	return a, nil
}

// abiOf finds out which of the three a library has, by what it exports. Libraries of MPI 5 with their own handles have
// both.
func abiOf(handle uintptr) (abi, error) {
	if has(handle, "ompi_mpi_comm_world") {
		return openMPIABI(handle)
	}
	if has(handle, "MPI_Abi_get_version") && !has(handle, "MPIR_Err_create_code") {
		return standardABI, nil
	}
	return mpichABI, nil
}

func has(handle uintptr, symbol string) bool {
	_, err := purego.Dlsym(handle, symbol)
	return err == nil
}
