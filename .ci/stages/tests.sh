# shellcheck shell=bash
# The tests of the Go code: as users build it, without assembly, and under the race detector.

# touched passes on those of the packages on standard input whose tests a change can touch.
touched() { grep -xFf "$work/touched" || true; }

# tested runs go test with its arguments on those packages.
tested() {
	local packages IFS=$'\n'
	packages=$(touched) || return 1
	# shellcheck disable=SC2086 # one argument for each
	[[ -z $packages ]] || go test "$@" $packages
}

# The README's command, where everything is tested. On a busy machine tests/docs may take more than ten minutes.
stage_test() { export CGO_ENABLED=0 && go list ./... | tested -timeout 30m; }

# Without assembly in the whole engine; with it, tensor and kernels are tested under every variant anyway. What runs
# CUDA's kernels in an interpreter has no assembly; tests of the assembly itself do not depend on the tag.
stage_noasm() {
	export CGO_ENABLED=0
	go list -tags noasm ./tensor/... ./internal/kernels/... ./internal/backend/... | grep -v /backend/cuda |
		tested -vet=off -skip '^TestCUDA|^TestAssemblyIsCurrent$|^TestKernelsKeepToTheirVariants$' -tags noasm
}

# Under the detector a package may take ten minutes on a busy machine. stage_vet has vetted the code.
raced() { CGO_ENABLED=1 tested -vet=off -race -short -timeout 30m "$@"; }

# The race detector does not see what assembly reads and writes: packages in which goroutines share the memory of tensors
# (ranks, streams, workers) are tested without it.
readonly sharing=(./accelerate ./accelerate/ddp ./comm/local ./internal/... ./tensor/... ./trainer/...)

# What runs CUDA's kernels in an interpreter would take many minutes under the detector: see stage_race.
readonly interpreted='/internal/(ptx|backend/cuda)$'

# Tests that prove bits by many trainings. Their ranks share what the ranks of other tests do: TestShardedCheckpoints,
# TestPipeline, TestTensorParallel, TestShardedModelsUnderMixedPrecision, TestOptimizersOfShardedModels.
readonly repeated=(
	TestHuggingFaceSharding TestTorchSharding TestEveryOptimizerOnAnyNumberOfRanks
	TestMixedPrecisionHasTheSameBitsOnAnyNumberOfRanks TestHalfParametersHaveTheSameBitsOnAnyNumberOfRanks
	TestShardedPipelines TestCheckpointsOfDividedModels TestCheckpointsOfShardedPipelines TestCheckpointsOverMeshes
)

# Tiles are emulated, and share nothing that TestTiledAgainstFloat64 has not.
readonly tiles='TestTiled(NonFinite|Halves|Fused|IsAsPrecise)'

stage_race_noasm() {
	local IFS='|'
	go list "${sharing[@]}" | grep -vE "$interpreted" | raced -tags noasm -skip "^($tiles|${repeated[*]})\$"
}

# All tests of packages that compute.
stage_race_noasm_all() {
	go list "${sharing[@]}" ./models/... ./nn/... ./optim/... | grep -vE "$interpreted" |
		raced -tags noasm -skip "^$tiles\$"
}

# The other packages, and the Go code around assembly. Not for packages whose tests only build and run programs: those
# are built without the detector.
stage_race() {
	{
		go list ./... |
			grep -vE '/(bench|tests/(arch|clusters|docs|e2e|distributed|module|touched)|examples/by_feature)(/|$)' |
			grep -vxFf <(go list "${sharing[@]}")
		go list ./internal/parallel ./internal/kernels/... | grep -v '/gemm$'
	} | raced || return 1
	# Products under each variant: what shares memory. stage_race_noasm tests the rest.
	go list ./internal/kernels/gemm | raced -run 'Workers|Sharing|Sweeping|Widened|TileShape|LargeShapes' || return 1
	# A short conformance test has the portable kernels alone, which stage_race_noasm tests.
	go list ./internal/backend/... | grep -vE "$interpreted" | raced -skip '^TestConformance$' || return 1
	# Streams, memory and staging; kernels are tests/cuda's.
	go list ./internal/backend/cuda | raced -run 'Memory|Pool|Requests|Writes|SeveralDevices|Loop'
}
