# shellcheck shell=bash
# The tests of the Go code: as users build it, without assembly, and under the race detector.

# The README's command.
stage_test() { CGO_ENABLED=0 go test ./...; }

# Without assembly in the whole engine; with it, tensor and kernels are tested under every variant anyway. What runs
# CUDA's kernels in an interpreter has no assembly; tests of the assembly itself do not depend on the tag.
stage_noasm() {
	CGO_ENABLED=0 go test -skip '^TestCUDA|^TestAssemblyIsCurrent$|^TestKernelsKeepToTheirVariants$' -tags noasm \
		./tensor/... ./internal/kernels/... $(go list ./internal/backend/... | grep -v /backend/cuda)
}

# Under the detector a package may take ten minutes on a busy machine.
#
# The race detector does not see what assembly reads and writes: packages that compute are tested without it.
readonly computing=(./accelerate ./accelerate/ddp ./comm/local ./internal/... ./models/... ./nn/... ./optim/... ./tensor/... ./trainer/...)

# What runs CUDA's kernels in an interpreter would take many minutes under the detector: see stage_race.
readonly interpreted='/internal/(ptx|backend/cuda)$'

stage_race_noasm() {
	# Tiles are emulated, and share nothing that TestTiledAgainstFloat64 has not.
	CGO_ENABLED=1 go test -race -short -timeout 30m -tags noasm -skip '^TestTiled(NonFinite|Halves|Fused|IsAsPrecise)$' \
		$(go list "${computing[@]}" | grep -vE "$interpreted")
}

# The other packages, and the Go code around assembly. Not for packages whose tests only build and run programs: those
# are built without the detector.
stage_race() {
	local packages
	packages=$(go list ./... | grep -vE '/(bench|tests/(arch|clusters|docs|e2e|distributed|module)|examples/by_feature)(/|$)' |
		grep -vxFf <(go list "${computing[@]}")) || return 1
	CGO_ENABLED=1 go test -race -short -timeout 30m $packages ./internal/parallel \
		$(go list ./internal/kernels/... | grep -v '/gemm$') || return 1
	# Products under each variant: what shares memory. stage_race_noasm tests the rest.
	CGO_ENABLED=1 go test -race -short -timeout 30m -run 'Workers|Sharing|Sweeping|Widened|TileShape|LargeShapes' \
		./internal/kernels/gemm || return 1
	# A short conformance test has the portable kernels alone, which stage_race_noasm tests.
	CGO_ENABLED=1 go test -race -short -timeout 30m -skip '^TestConformance$' \
		$(go list ./internal/backend/... | grep -vE "$interpreted") || return 1
	# Streams, memory and staging; kernels are tests/cuda's.
	CGO_ENABLED=1 go test -race -short -timeout 30m -run 'Memory|Pool|Requests|Writes|SeveralDevices|Loop' ./internal/backend/cuda
}
