#!/usr/bin/env bash
# Tries Lockstep on the machine's first GPU and measures it beside its peers, from a clean clone in under 25 minutes: the most valuable first, each step with a
# limit of its own, so that what a machine lacks costs nothing else.
#
# Usage: bench/gpu/run.sh [--fake] [FOLDER]
#
# FOLDER, by default out/bench/gpu, gets a log of each step, steps.txt (what became of them), results.txt (lines RESULT), table.md, and the loss curves.
# PYTHON names an interpreter with PyTorch for CUDA and transformers; without it the peers' rows are missing. It wants Go, NVIDIA's driver and cuBLASLt;
# compute-sanitizer, ncu, cuDNN and NCCL where they are there.
#
# Without a device each step says so, and the script ends well. --fake takes the kernels' interpreter instead of a device, tiny sizes, and peers on the CPU:
# its figures mean nothing.
set -uo pipefail
cd "$(dirname "$0")/../.."
fake=
if [ "${1:-}" = --fake ]; then
    fake=1
    shift
fi
out=$(mkdir -p "${1:-out/bench/gpu}" && cd "${1:-out/bench/gpu}" && pwd)
rm -f "$out"/*.log "$out"/*.txt "$out"/curve-* "$out"/table.md
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
failed=0
total=1470 # seconds of all steps

# step NAME LIMIT COMMAND… runs a command under a limit of seconds and notes what became of it.
step() {
    local name=$1 limit=$2 start=$SECONDS what rc
    shift 2
    if [ $((total - SECONDS)) -lt 10 ]; then
        skip "$name" "no time is left"
        return 1
    fi
    [ "$limit" -le $((total - SECONDS)) ] || limit=$((total - SECONDS))
    timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
    rc=$?
    case $rc in
    0) what=ok ;;
    124 | 137) what="stopped after $limit s" ;;
    *) what="failed ($rc)" ;;
    esac
    grep -h '^RESULT ' "$out/$name.log" >>"$out/results.txt"
    if [ $rc -ne 0 ] && grep -q 'no device' "$out/$name.log"; then
        what='no device'
    elif [ $rc -ne 0 ]; then
        failed=1
    fi
    printf '%5d s  %-28s %4d s  %s\n' "$SECONDS" "$name" $((SECONDS - start)) "$what" | tee -a "$out/steps.txt"
    return $rc
}

# skip NAME WHY notes a step that the machine has nothing for.
skip() { printf '%5d s  %-28s    -    %s\n' "$SECONDS" "$1" "$2" | tee -a "$out/steps.txt"; }

# both compares what two logs say of the weights.
both() {
    local a b
    a=$(awk '/^WEIGHTS/ { print $3 }' "$1") && b=$(awk '/^WEIGHTS/ { print $3 }' "$2")
    [ -n "$a" ] && [ -n "$b" ] || { echo "a run has no weights: no device?"; return 1; }
    [ "$a" = "$b" ] && echo "the same bits: $a" || { printf 'other bits:\n%s\n%s\n' "$a" "$b"; return 1; }
}

tags=(-tags cuda)
device=cuda:0
peers=cuda:0
small=()
model=()
if [ -n "$fake" ]; then
    device=fake peers=cpu
    small=(--steps 3 --batch 2 --block 16 --n_embd 32 --n_head 2 --image 33 --size 64)
    model=(--n_layer 2 --vocab_size 256)
fi
export -f both

{
    echo "Lockstep $(git describe --always --dirty), $(go version), $(date -u +%FT%TZ)${fake:+, the fake device: figures mean nothing}"
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv 2>&1 || true
    [ -n "${PYTHON:-}" ] && "$PYTHON" -c 'import torch, transformers; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "transformers", transformers.__version__)'
} >"$out/machine.txt" 2>&1

# Programs and tests, built once.
step build 300 go build "${tags[@]}" -o "$bin/" ./bench/gpu ./cmd/lockstep || { cat "$out/build.log"; exit 1; }
step build-tests 300 bash -c "go test ${tags[*]} -c -o $bin/backend.test ./internal/backend/cuda && go test ${tags[*]} -c -o $bin/optest.test ./tensor/optest" ||
    { cat "$out/build-tests.log"; exit 1; }

# The driver, five times: a process that ends badly may do so only now and then.
for i in 1 2 3 4 5; do step "driver-$i" 30 "$bin/gpu" devices --device "$device" || break; done
step environment 30 "$bin/lockstep" env

# Training, and the same run twice.
train=("${small[@]}" "${model[@]}")
step gpt2 150 "$bin/gpu" gpt2 --device "$device" --steps 60 --save "$out/model" --curve "$out/curve-lockstep.txt" "${train[@]}"
step gpt2-again 150 "$bin/gpu" gpt2 --device "$device" --steps 60 --row gpt2 "${train[@]}"
step same-bits 10 bash -c "both '$out/gpt2.log' '$out/gpt2-again.log'"

# The same without CUDA graphs, and steps so small that launches cost more than kernels, with and without.
step gpt2-no-graphs 150 env LOCKSTEP_CUDA_GRAPHS=0 "$bin/gpu" gpt2 --device "$device" --steps 60 --row gpt2_no_graphs "${train[@]}"
step same-bits-no-graphs 10 bash -c "both '$out/gpt2.log' '$out/gpt2-no-graphs.log'"
for p in 0 0.1; do
    for g in 1 0; do
        step "gpt2-small-$p-graphs-$g" 40 env LOCKSTEP_CUDA_GRAPHS=$g "$bin/gpu" gpt2 --device "$device" --steps 60 --batch 1 --block 128 --dropout $p \
            --row "gpt2_small_dropout_${p}_graphs_$g" "${train[@]}"
    done
done

# The contract of all ops on the device; IEEE kernels have the CPU's bits, as the interpreter's have.
if [ -n "$fake" ]; then
    step bits 120 "$bin/backend.test" -test.run '^TestBitsAreTheCPUs$'
    skip conformance "the fake's run is part of go test ./..."
    skip optest "the fake's run is part of go test ./..."
else
    export LOCKSTEP_TEST_DEVICE=1
    step bits 120 "$bin/backend.test" -test.run '^(TestBits|TestCopies|TestFlash|TestLongRows|TestRows|TestParamGrads)'
    step conformance 240 "$bin/backend.test" -test.run '^TestConformance$'
    step optest 240 env LOCKSTEP_REQUIRE_TOOLS=gpu "$bin/optest.test" -test.run '^TestDevice$'
fi

# Peers train with the same weights on the same tokens.
peer() {
    local name=$1 limit=$2
    shift 2
    if [ -z "${PYTHON:-}" ]; then
        skip "$name" "PYTHON names no interpreter"
    elif [[ -n "$fake" && "$*" = *torch_compile* ]]; then
        skip "$name" "minutes on the CPU"
    elif [ ! -d "$out/model" ]; then
        skip "$name" "no device: there are no weights to begin with"
    else
        step "$name" "$limit" "$PYTHON" bench/gpu/peer.py "$@" --device "$peers" "${small[@]}"
    fi
}
peer gpt2-eager 120 gpt2 --who torch_eager --steps 60 --load "$out/model" --curve "$out/curve-torch_eager.txt"
peer gpt2-compile 240 gpt2 --who torch_compile --steps 60 --load "$out/model" --curve "$out/curve-torch_compile.txt"
peer gpt2-trainer 150 gpt2 --who hf_trainer --steps 60 --load "$out/model" --curve "$out/curve-hf_trainer.txt"

# Ceilings, and attention alone.
step products 60 "$bin/gpu" products --device "$device" "${small[@]}"
peer products-torch 60 products
for p in 0 0.1; do
    step "attention-$p" 60 "$bin/gpu" attention --device "$device" --dropout $p --row "attention_dropout_$p" "${small[@]}"
    peer "attention-$p-torch" 60 attention --dropout $p --row "attention_dropout_$p"
done
step gpt2-dropout 120 "$bin/gpu" gpt2 --device "$device" --dropout 0.1 --row gpt2_dropout "${train[@]}"
peer gpt2-dropout-compile 240 gpt2 --who torch_compile --dropout 0.1 --row gpt2_dropout --load "$out/model"
peer gpt2-dropout-trainer 120 gpt2 --who hf_trainer --dropout 0.1 --row gpt2_dropout --load "$out/model"

if [ -n "$fake" ]; then
    skip resnet "minutes in the interpreter"
else
    step resnet 120 "$bin/gpu" resnet --device "$device" --batch 128
    peer resnet-eager 90 resnet --who torch_eager --batch 128
    peer resnet-compile 240 resnet --who torch_compile --batch 128
fi

# NCCL with one rank: every function that the engine has.
if [ -n "$fake" ] || [ ! -d comm/nccl ]; then
    skip nccl "no device, or no engine"
else
    step nccl 120 go test "${tags[@]}" -count=1 ./comm/nccl -run Library
fi

# The sanitizer runs kernels some ten times slower.
if [ -z "$fake" ] && command -v compute-sanitizer >/dev/null; then
    step memcheck 180 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/backend.test" -test.short -test.run '^(TestFlash|TestLongRows|TestBits)'
    step racecheck 180 compute-sanitizer --tool racecheck --error-exitcode 9 "$bin/backend.test" -test.short -test.run '^(TestFlash|TestLongRows)'
else
    skip sanitizer "no compute-sanitizer, or no device"
fi
if [ -z "$fake" ] && command -v ncu >/dev/null; then
    step ncu 120 ncu --launch-skip 2000 --launch-count 60 --section SpeedOfLight "$bin/gpu" gpt2 --device "$device" --steps 4
else
    skip ncu "no ncu, or no device"
fi

[ -s "$out/results.txt" ] && "$bin/gpu" table "$out/results.txt" | tee "$out/table.md"
rm -rf "$out/model"
echo "$SECONDS seconds; all is in $out"
exit $failed
