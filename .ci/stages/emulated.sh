# shellcheck shell=bash
# Tests in emulators of qemu-user: kernels in arm64 code, and on processors without some features.

# Kernels and the backend's conformance suite in arm64 code.
stage_arm64() {
	local packages
	packages=$(go list ./internal/backend/cpu ./internal/kernels/{gemm,vecmath,winograd,blockwise} ./internal/rng |
		touched) || return 1
	[[ -n $packages ]] || return 0
	qemu=$(emulator aarch64) && mkdir "$work/arm64" || return 1
	# shellcheck disable=SC2086 # one argument for each
	CGO_ENABLED=0 GOARCH=arm64 go test -c -o "$work/arm64/" $packages || return 1
	export qemu work
	export -f arm64_test
	# Most of these tests keep one core busy.
	# shellcheck disable=SC2016,SC2086 # the shell that is started has the argument
	go list -f '{{.Dir}}' $packages | xargs -P "$cores" -I{} bash -c 'arm64_test "$1"' bash {}
}

# arm64_test runs the tests of a folder that stage_arm64 has built, and prints what they said.
arm64_test() {
	local said
	said=$(cd "$1" && "$qemu" "$work/arm64/$(basename "$1").test" -test.short -test.timeout=20m 2>&1)
	local failed=$?
	printf '%s\n' "$1" "$said"
	return $failed
}

# Kernels on processors with AVX2 and without AVX-512, and on processors that lack a feature: a machine with AVX-512 also
# runs its instructions in kernels of AVX2. All kernels of AVX2 must have run. Then two steps of a training.
stage_emulated() {
	local qemu cpu variant package said
	[[ -n $(go list ./internal/kernels/{blockwise,gemm,vecmath,winograd} | touched) ]] || return 0
	qemu=$(emulator x86_64) && emulated_tests && CGO_ENABLED=0 GOOS=linux GOARCH=amd64 \
		go build -o "$work/emulated/clm" ./examples/clm || return 1
	for _ in {1..400}; do echo 'func add(a, b int) int { return a + b }'; done >"$work/emulated/text"
	for cpu in "${!emulated[@]}"; do
		variant=${emulated[$cpu]}
		echo "$cpu: $variant"
		emulated_test kernels "$cpu" '' -test.run 'Host|Available|Choose|Caches' || return 1
		if [[ $variant == avx2 ]]; then
			emulated_test gemm "$cpu" log -test.run '^TestEveryKernel$' &&
				emulated_test vecmath "$cpu" log -test.skip 'NonTemporalStores|KeepsItsTail|EveryFloat16' &&
				emulated_test winograd "$cpu" log &&
				emulated_test blockwise "$cpu" log || return 1
		fi
		said=$("$qemu" -cpu "$cpu" "$work/emulated/clm" --train_file "$work/emulated/text" --max_steps 2 --logging_steps 1 \
			--per_device_train_batch_size 2 --block_size 32 --n_layer 2 --n_embd 64 --n_head 2 --vocab_size 300 \
			--output_dir "$work/emulated/$cpu" --max_new_tokens 8 2>&1) || { echo "$said"; return 1; }
		[[ $said == *"training on cpu ($variant, "*"step 2 "*"train_loss "* ]] || { echo "$said"; return 1; }
	done
}

# All tests of the kernels on one of those processors. Installs Debian's qemu-user where it is missing. Gemm, the last,
# takes most of the time.
stage_emulated_all() {
	local package
	emulator x86_64 2>/dev/null || install qemu-user || return 1
	emulated_tests || return 1
	for package in kernels blockwise vecmath winograd gemm; do
		emulated_test $package Haswell-v1 '' -test.v -test.skip AssemblyIsCurrent || return 1
	done
}

# Processors by qemu's name, and the variant that each runs.
declare -rA emulated=(
	[Haswell-v1]=avx2 [EPYC-Rome-v1]=avx2
	[Nehalem-v1]=generic [Haswell-v1,-fma]=generic [Haswell-v1,-avx2]=generic [Haswell-v1,-f16c]=generic
)

# emulated_tests builds the tests of the kernels.
emulated_tests() {
	local package
	mkdir "$work/emulated" || return 1
	for package in . blockwise gemm vecmath winograd; do
		CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go test -c -o "$work/emulated/" "./internal/kernels/$package" || return 1
	done
}

# emulated_test runs tests of a package on a processor. With a log each kernel of AVX2 in the program must have run.
emulated_test() {
	local package=$1 cpu=$2 log=${3:+$work/emulated/log} variants=''
	local binary=$work/emulated/$package.test folder=internal/kernels/$package
	[[ -z $log ]] || variants=avx2
	[[ $package != kernels ]] || folder=internal/kernels
	(cd "$folder" && LOCKSTEP_REQUIRE_VARIANTS=$variants LOCKSTEP_SKIPPED='' "$(emulator x86_64)" -cpu "$cpu" \
		${log:+-D "$log" -d in_asm} "$binary" -test.short -test.timeout=60m "${@:4}") || return 1
	[[ -n $log ]] || return 0
	comm -23 <(go tool nm "$binary" | grep -oE "/$package\.[A-Za-z0-9]*AVX2[A-Za-z0-9]*\.abi0\$" | sort -u) \
		<(sed -n 's/^IN: .*\(\/[^/]*\)$/\1/p' "$log" | sort -u) >"$work/emulated/left"
	[[ ! -s $work/emulated/left ]] || { echo "these kernels did not run:"; cat "$work/emulated/left"; return 1; }
}
