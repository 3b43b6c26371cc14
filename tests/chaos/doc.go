// SPDX-License-Identifier: Apache-2.0

// Chaos runs training jobs of examples/clm for ten minutes and disturbs them: it kills and stops ranks, launchers and
// guards, cuts links, fills disks, connects as a stranger to every port, and moves clocks. Whatever happens, a job,
// which is resumed as often as it needs, must end with the bits of an undisturbed run, and leave nothing behind: no
// process, no file, no lock, no shared memory. Harmless faults, such as a stranger or a clock, must not restart a job.
// Some jobs are pipelines in every other try, so they resume on another mesh.
//
//	go run ./tests/chaos
//	CHAOS_SECONDS=60 go run ./tests/chaos
//	CHAOS_SEED=7 CHAOS_SCENARIO=12 go run ./tests/chaos
//
// CHAOS_SEED repeats the scenarios of a run, CHAOS_SCENARIO takes one of them; the exact time of a fault varies with
// the machine. The first scenarios have each kind of fault once, the others are drawn. A scenario that fails is printed
// with what repeats it, its folder is kept, and the exit code is 1.
//
// The jobs run in their own namespaces, with their own /tmp, /dev/shm and network. Where these cannot be made, the
// summary's last lines say which kinds of faults were left out, and why. It needs Linux.
package main
