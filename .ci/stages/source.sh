# shellcheck shell=bash
# What needs no test to run: the form of the files, the modules, builds and analysis.

# The tools, at fixed versions.
readonly staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
readonly actionlint=github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

# in_bench runs a command in the folder of the benchmarks, which are a module of their own.
in_bench() { (cd bench && "$@"); }

stage_format() {
	local bad
	bad=$(git ls-files -co --exclude-standard '*.go' | tr '\n' '\0' | xargs -0 gofmt -l) || return 1
	[[ -z $bad ]] || { echo "not formatted (gofmt -w):"; echo "$bad"; return 1; }
}

stage_modules() { go mod tidy -diff && go mod verify && in_bench go mod tidy -diff; }

# Without linking: tests link and run the programs.
stage_build() { CGO_ENABLED=0 go list -export ./... >/dev/null; }

# Go vet for the target whose packages tests need compiled anyway. For the others the same analyzers, from source. They
# build much that lives: collecting it less often saves a quarter of the processor time, and of staticcheck's a third.
stage_vet() {
	export CGO_ENABLED=0 GOGC=400
	go vet ./... && in_bench go vet ./... || return 1
	go vet ./data/tokenizers/testdata/differ ./data/chat/testdata/differ || return 1 # which ./... leaves out
	go build -C .ci/vet -o "$work/vet" . || return 1
	local target
	for target in linux/arm64 darwin/arm64 windows/amd64; do
		echo "$target"
		GOOS=${target%/*} GOARCH=${target#*/} vetted '' ./... || return 1
	done
	vetted noasm ./... || return 1
	vetted mpi ./comm/mpi ./examples/clm && in_bench vetted mpi ./comm || return 1
	vetted cuda ./internal/cuda/... ./internal/nvml ./comm/nccl ./tensor/cuda ./examples/clm
}

# vetted vets those packages that the change can touch, with tags, except the interpreter of PTX: tests alone import it,
# and it is the same code for every target.
vetted() {
	local packages IFS=$'\n'
	packages=$(go list -tags "$1" "${@:2}" | grep -v '/internal/ptx$' | touched) || return 1
	# shellcheck disable=SC2086 # one argument for each
	[[ -z $packages ]] || "$work/vet" -tags "$1" $packages
}

stage_staticcheck() {
	GOBIN=$work/bin go install "$staticcheck" || return 1
	export CGO_ENABLED=0 GOGC=400
	"$work/bin/staticcheck" ./... && in_bench "$work/bin/staticcheck" ./...
}

# The workflows of .github. Before them a control: with a misspelt input one of them must be refused, for that input.
stage_workflows() {
	local said
	GOBIN=$work/bin go install "$actionlint" || return 1
	said=$(sed 's/fetch-depth/fetch-deph/' .github/workflows/ci.yml | "$work/bin/actionlint" -no-color -)
	[[ $said == *'input "fetch-deph" is not defined'* ]] || { echo "actionlint takes a misspelt input: $said"; return 1; }
	"$work/bin/actionlint"
}
