# shellcheck shell=bash
# The tests of the Go code: as users build it, without assembly, and under the race detector.

# touched passes on those of the packages on standard input whose tests a change can touch.
touched() { grep -xFf "$work/touched" || true; }

# Packages whose tests take longest.
readonly longest='/(accelerate(/launch)?|cmd/lockstep|comm/tcp|examples/by_feature|backend/cuda|tests/distributed|trainer)$'

# tested runs go test with its arguments on those packages. go test keeps to the order of its arguments: those that take
# longest come first, so that none of them is left for one core at the end.
tested() {
	local packages IFS=$'\n'
	packages=$(touched | tac) || return 1
	packages=$(grep -E "$longest" <<<"$packages"; grep -vE "$longest" <<<"$packages")
	# shellcheck disable=SC2086 # one argument for each
	[[ -z $packages ]] || go test "$@" $packages
}

# The README's command, where everything is tested; stage_vet has vetted the code. On a busy machine tests/docs may take
# more than ten minutes. For tests of the benchmarks go test does not see when a document above their module changes.
stage_test() {
	export CGO_ENABLED=0
	go list ./... | tested -vet=off -timeout 30m || return 1
	in_bench go list ./... | in_bench tested -vet=off -count=1
}

# Without assembly in the whole engine; with it, tensor and kernels are tested under every variant anyway. What runs
# CUDA's kernels in an interpreter has no assembly; tests of the assembly itself do not depend on the tag.
stage_noasm() {
	export CGO_ENABLED=0
	go list -tags noasm ./tensor/... ./internal/kernels/... ./internal/backend/... | grep -v /backend/cuda |
		tested -vet=off -skip '^TestCUDA|^TestAssemblyIsCurrent$|^TestKernelsKeepToTheirVariants$' -tags noasm
}

# Under the detector a package may take ten minutes on a busy machine. stage_vet has vetted the code. Without
# GORACE each program would sleep for a second before it exits, in case goroutines that its tests left behind meet then.
raced() { CGO_ENABLED=1 GORACE=atexit_sleep_ms=20 tested -vet=off -race -short -timeout 30m "$@"; }

# concurrent passes on those of the packages on standard input in which goroutines may meet: tests/touched has the rule.
concurrent() { grep -xFf "$work/concurrent" || true; }

# The race detector does not see what assembly reads and writes: packages in which goroutines share the memory of tensors
# (ranks, streams, workers) are tested without it.
readonly sharing=(./accelerate ./accelerate/ddp ./comm/local ./internal/... ./tensor/... ./trainer/...)

# What runs CUDA's kernels in an interpreter would take many minutes under the detector: see stage_race.
readonly interpreted='/internal/(ptx|backend/cuda)$'

# Tests that prove bits by many trainings, on one rank or on ranks that share what the ranks of other tests do:
# TestSameBitsOnAnyNumberOfRanks, TestShardedCheckpoints, TestPipeline, TestTensorParallel, TestContextParallel,
# TestShardedModelsUnderMixedPrecision, TestOptimizersOfShardedModels, TestAdaptersOnRanks,
# TestRandomRunsOfTransformersOnRanks.
readonly repeated=(
	TestHuggingFaceSharding TestTorchSharding TestEveryOptimizerOnAnyNumberOfRanks
	TestMixedPrecisionHasTheSameBitsOnAnyNumberOfRanks TestHalfParametersHaveTheSameBitsOnAnyNumberOfRanks
	TestShardedPipelines TestCheckpointsOfDividedModels TestCheckpointsOfShardedPipelines TestCheckpointsOverMeshes
	TestRandomRunsOfTransformersWithLanguageModels TestEightBitStateInShards TestCheckpointsOfDividedTokens
	TestCheckpointsOfAdapters TestCheckpointsOfAdaptersOnMeshes TestRunsOfTransformers TestRandomRunsOfTransformers
	TestResumeOnAnotherNumberOfRanks TestResumeKeepsTheStepOnAnotherNumberOfRanks TestFullShardOnFiveAndSixRanks
	TestShardedModelsInMixedPrecision
)

# Tests that measure the memory of trainings, on ranks that share what the ranks of those tests do.
readonly measured='TestEstimateOfDivided(Memory|Stages)|TestLoadOfShardedModels'

# Tiles are emulated, and share nothing that TestTiledAgainstFloat64 has not.
readonly tiles='TestTiled(NonFinite|Halves|Fused|IsAsPrecise)'

# Products by several workers: what shares memory.
readonly products='Workers|Sharing|Sweeping|Tiling|TileShape|CopyingPanels|PackingByTheWay|FusedEqualsSteps'

# In these one goroutine reads texts or divides memory, or computes what TestDeferred has.
readonly single='TestLint|TestArchive|TestArena|TestComposites|TestCompositesOfSoftCaps|TestCompositesOfMixedNorms'

# By workers, these compute what TestDeferred does by as many; and sums of ranks and losses in pieces, in which workers
# share what they do in TestPartedSumsRunBesideProducts, TestLinearLogProbsOfFrozenWeight and
# TestLinearCrossEntropyOfFrozenWeight.
readonly pieces='TestCPU|TestPartedSumsOfGroupsOfRows|TestLinearLogProbsInChunks|TestLinearCrossEntropyInChunks'

stage_race_noasm() {
	local IFS='|'
	{ go list "${sharing[@]}" | concurrent && go list ./tensor/...; } | sort -u |
		grep -vE "$interpreted|/(kernels/gemm|backend/cpu)\$" |
		raced -tags noasm -skip "^($single|$pieces|$measured|${repeated[*]})\$" || return 1
	go list ./internal/kernels/gemm | concurrent | raced -tags noasm -run "$products" &
	local beside=$! failed=0
	# The conformance test of internal/backend/deferred runs the same kernels, by as many workers, on more goroutines.
	# Sizes have one goroutine, and products of halves share what those of TestHalfLinear and, in batches, of TestBits do.
	go list ./internal/backend/cpu | concurrent |
		raced -tags noasm -skip '^TestConformance$|^TestSizeClasses$|^TestArena$|^TestHalfMatMulRoundsOnce$' || failed=1
	wait "$beside" && return "$failed"
}

# All tests of packages that compute.
stage_race_noasm_all() {
	go list "${sharing[@]}" ./models/... ./nn/... ./optim/... | grep -vE "$interpreted" |
		raced -tags noasm -skip "^$tiles\$"
}

# Packages whose tests only build and run programs, which are built without the detector.
readonly programs='/(tests/(arch|clusters|docs|e2e|distributed|module|touched)|examples/by_feature)(/|$)'

# unshared lists the packages that stage_race_noasm does not test, without those of programs.
unshared() { go list ./... | grep -vE "$programs" | grep -vxFf <(go list "${sharing[@]}"); }

# Not raced: of cmd/lockstep, predictions, which have no goroutines, and proofs, whose ranks are those of trainer. Of
# checkpoint, what one goroutine does again and again, with a fault at each operation.
readonly alone='TestProve|TestEstimate|TestSimulate|TestEachOperationFailsInTurn|TestCrashAfterEachOperation'
readonly again='TestCrashTwice|TestEveryFlippedBitIsFound'

# Of accelerate/tp, faulty sums that must differ, on ranks that share what right ones do.
readonly controls='TestFaultySumsDiffer|TestSumsOfRanksAtOnceDiffer'

# Streams, memory and staging of backend/cuda.
readonly streams='TakeNoMemory|MemoryThat|MemoryOf|MemoryBelongs|OutOfMemory|Pool|Requests|Writes|SeveralDevices|Loop'

# The other packages in which goroutines may meet, and the Go code around assembly. Few runs of go test keep both cores
# busy, so those packages share one of which the names of tests say what is run.
stage_race() {
	local some='/(data/tokenizers|tests/cuda|internal/kernels/gemm|internal/backend/cuda)$'
	{ unshared && go list ./internal/parallel ./internal/kernels/...; } | grep -vE "$some" | concurrent |
		raced -skip "$alone|$again|$controls" || return 1
	# Short, these have the portable kernels alone, which stage_race_noasm tests, or one goroutine.
	go list ./internal/backend/... | grep -vE "$interpreted" |
		raced -skip '^TestConformance$|^TestBitsDoNotDependOnWorkers$|^TestSizeClasses$' || return 1
	# Of tokenizers, what several goroutines read. Of tests/cuda, ranks on simulated devices. Of gemm, products under each
	# variant. Of backend/cuda, streams: kernels are those of tests/cuda.
	go list ./data/tokenizers ./tests/cuda ./internal/kernels/gemm ./internal/backend/cuda |
		raced -run "DependOnWorkers|^TestBits$|^TestBitsOfAPipeline$|$products|^TestLargeShapes$|$streams"
}

# All tests of all packages.
stage_race_all() { unshared | raced; }
