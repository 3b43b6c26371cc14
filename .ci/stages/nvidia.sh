# shellcheck shell=bash
# NVIDIA's libraries: over fakes, over mocks, and the real ones as far as they go without a device.

# The bindings of NVIDIA's libraries, over libraries in C that behave like them. They need no GPU.
stage_bindings() {
	export LOCKSTEP_REQUIRE_TOOLS=cc CGO_ENABLED=0
	go list -tags cuda ./comm/nccl ./internal/cuda/libcuda ./internal/nvml | tested -tags cuda
}

# NVIDIA's binding of its management library, with its own mock of eight GPUs.
# And clm with the tags cuda and nvml, over a library in C that behaves like NVIDIA's.
stage_nvml() {
	export CGO_ENABLED=1
	go list -tags nvml ./internal/nvml ./integrations/nvml | tested -tags nvml || return 1
	go list ./tests/e2e | LOCKSTEP_REQUIRE_TOOLS=cc tested -tags 'cuda nvml' -run '^TestNVML$'
}

# NVIDIA's own compiler and libraries, from PyPI, as far as they go without a device: the committed PTX is what the pinned
# compiler makes of the sources, and the libraries take what Lockstep asks for. The sources, compiled for the CPU by g++,
# pass the suite that their PTX passes in the interpreter. Then the programs: static and without CUDA, or with the tag
# cuda and without a driver. Installs Debian's g++ and python3-venv where they are missing, and the
# wheels (2 GB) in a folder that it deletes.
stage_nvidia() {
	local venv=$work/nvidia site missing=()
	command -v g++ || missing+=(g++) # nvcc's host compiler
	((${#missing[@]} == 0)) || install "${missing[@]}" || return 1
	python3 -m venv "$venv" 2>/dev/null || { install python3-venv && python3 -m venv --clear "$venv"; } || return 1
	"$venv/bin/python" -m pip install --quiet --no-deps --only-binary :all: "${nvidia[@]}" || return 1
	site=$(echo "$venv"/lib/python3*/site-packages/nvidia)
	export LOCKSTEP_REQUIRE_TOOLS=nvcc,cublaslt,nccl,cudnn,g++ CGO_ENABLED=0
	export LOCKSTEP_NVCC LOCKSTEP_CUBLASLT LOCKSTEP_NCCL_LIBRARY LOCKSTEP_CUDNN
	LOCKSTEP_NVCC=$(echo "$site"/*/bin/nvcc)
	LOCKSTEP_CUBLASLT=$(echo "$site"/*/lib/libcublasLt.so.*)
	LOCKSTEP_NCCL_LIBRARY=$(echo "$site"/*/lib/libnccl.so.*)
	LOCKSTEP_CUDNN=$(echo "$site"/cudnn/lib/libcudnn.so.*)
	# cuDNN is several libraries, which want cuBLAS.
	LD_LIBRARY_PATH=$(dirname "$LOCKSTEP_CUDNN"):$(dirname "$LOCKSTEP_CUBLASLT") \
		go test -count=1 -tags cuda ./internal/cuda/libcuda ./comm/nccl ./internal/cuda/kernels || return 1
	go test -count=1 -timeout 30m -tags cuda -run '^TestCompiledKernels$' ./internal/backend/cuda || return 1
	passes ./tests/arch TestProgramsAreStatic && passes ./tests/e2e TestCUDA
}

# passes runs a test by its name, which must be there.
passes() {
	local said
	said=$(go test -count=1 -v -run "^$2\$" "$1")
	echo "$said"
	[[ $said == *"--- PASS: $2 "* ]]
}

# nvidia are the wheels, and what nvcc needs of others.
readonly nvidia=(
	nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
	nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.10.0.20 nvidia-nccl-cu13==2.30.7 nvidia-cudnn-cu13==9.28.1.4
)
