#!/bin/sh
# Builds what Lockstep is compared with, where it is missing, and prints the settings that the benchmarks read, as shell assignments:
#
#   eval "$(bench/peers.sh)"
#
# PYTHON       an interpreter with the newest PyTorch, transformers, accelerate and scipy-openblas32; taken as it is if it is set
# MKL_PRELOAD  a library for LD_PRELOAD that answers MKL's question whether the processor is Intel's with yes: else PyTorch's MKL takes kernels of AVX2
#              times on others, at half the speed on those with AVX-512. Empty on Intel's, and where there is no C compiler.
# GOMLX        the program of bench/gomlx
# LLMC         the program of bench/llmc, if LLM_C names a folder with llm.c's source
#
# TORCHINDUCTOR_CACHE_DIR  where torch.compile keeps what it compiled: minutes' work for the first run
#
# All lies in BENCH_CACHE, by default a folder in the user's cache. torch.compile needs a C++ compiler, or its rows are missing.
set -eu
cd "$(dirname "$0")"
cache=${BENCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-bench}
mkdir -p "$cache"
say() { echo "peers: $*" >&2; }

# has says whether the interpreter has modules, without the seconds that importing them takes.
has() { "$PYTHON" -c 'import sys, importlib.util as u; sys.exit(None in map(u.find_spec, sys.argv[1:]))' "$@"; }

if [ -z "${PYTHON:-}" ]; then
    PYTHON=$cache/venv/bin/python
    if ! [ -x "$PYTHON" ]; then
        say "a virtual environment with PyTorch in $cache/venv: this takes minutes"
        python3 -m venv "$cache/venv"
    fi
    has torch || "$PYTHON" -m pip install --quiet --retries 0 torch --index-url https://download.pytorch.org/whl/cpu >&2 ||
        "$PYTHON" -m pip install --quiet torch >&2
    has transformers accelerate scipy_openblas32 || "$PYTHON" -m pip install --quiet transformers accelerate numpy scipy-openblas32 >&2
fi
has torch || { say "$PYTHON has no torch"; exit 1; }
for module in transformers accelerate scipy_openblas32; do
    has "$module" || say "$PYTHON has no $module: its rows will be missing"
done

MKL_PRELOAD=
if [ "$(uname -m)" = x86_64 ] && ! grep -q GenuineIntel /proc/cpuinfo; then
    if command -v "${CC:-cc}" >/dev/null; then
        MKL_PRELOAD=$cache/mkl_any_processor.so
        echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' | "${CC:-cc}" -shared -fPIC -O2 -o "$MKL_PRELOAD" -x c -
    else
        say "no C compiler: PyTorch's MKL will take its AVX2 kernels"
    fi
fi

# GoMLX has vector code only with this experiment of Go's, for matrix products.
GOMLX=$cache/gomlx
(cd gomlx && GOWORK=off CGO_ENABLED=0 GOEXPERIMENT=simd go build -o "$GOMLX" .) || { say "GoMLX does not build: its rows will be missing"; GOMLX=; }

LLMC=
if [ -n "${LLM_C:-}" ]; then
    LLMC=$cache/llmc
    "${CC:-cc}" -Ofast -march=native -fopenmp -Wno-unused-result -I "$LLM_C" -o "$LLMC" llmc/peer.c -lm || { say "llm.c does not build: its row will be missing"; LLMC=; }
else
    say "LLM_C names no folder with llm.c's source: its row will be missing"
fi

echo "export PYTHON='$PYTHON' MKL_PRELOAD='$MKL_PRELOAD' GOMLX='$GOMLX' LLMC='$LLMC' TORCHINDUCTOR_CACHE_DIR='$cache/inductor'"
