#!/usr/bin/env bash
# Tries Lockstep on this machine's first GPU, or measures it, with what pack.sh packed beside this script. No Go and no network are wanted. Each word takes at
# most ten minutes:
#
#   correctness  the driver, every op, the bits of training runs
#   settings     families of models, optimizers, precisions and ways to divide a run, beside the CPU
#   speed        training, products and attention
#   peers        the same by PyTorch, torch.compile and HuggingFace's Trainer, with the same weights and tokens
#   decoders     training of published models' sizes, and the same by PyTorch
#   tools        compute-sanitizer and ncu
#
# Usage: day.sh correctness|settings|speed|peers|decoders|tools [--seconds N] [--device fake] [--out DIR]
#
# cuBLASLt, cuDNN and NCCL are taken from the wheels of PyTorch that PYTHON, by default python3, has, or from the loader's path. A table says what held, what
# failed and what did not run; DIR, by default out beside this script, gets it, every log, and both in WORD.tar.gz. --device fake takes the kernels' interpreter
# at tiny sizes, peers on the CPU, and stand-ins for the tools, which check how they are called: figures then mean nothing. The exit status is 0 if all held,
# 1 if something failed, 3 if something did not run.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n 's/^# Usage/usage/p' "$here/day.sh" >&2; exit 2; }
what=${1:-} fake='' out=$here/out total=585 # seconds of all steps
case $what in correctness | settings | speed | peers | decoders | tools) shift ;; *) usage ;; esac
while [ $# -gt 0 ]; do
    case $1 in
    --device) [ "${2:-}" = fake ] || [ "${2:-}" = cuda:0 ] || usage; [ "$2" = fake ] && fake=1; shift 2 ;;
    --seconds) [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || usage; total=$2; shift 2 ;;
    --out) out=${2:?want a folder}; shift 2 ;;
    *) usage ;;
    esac
done
out=$(mkdir -p "$out/$what" && cd "$out/$what" && pwd) || exit 2
rm -f "$out"/*
python=${PYTHON:-python3}

# What was packed.
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
child=''
trap '[ -z "$child" ] || kill "$child"; exit 143' HUP INT TERM
if command -v xz >/dev/null; then
    xz -dc "$here/lockstep.tar.xz" | tar -C "$work" -xf -
else
    "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$here/lockstep.tar.xz" | tar -C "$work" -xf -
fi || { echo "day.sh: $here/lockstep.tar.xz cannot be unpacked" >&2; exit 2; }
cd "$work" || exit 2
export HOME=${HOME:-$work} # the driver keeps compiled kernels there

# library VARIABLE NAME… sets the variable to the first library of a name in PyTorch's wheels.
wheels=$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null)
library() {
    local variable=$1 file name
    shift
    [ -n "${!variable:-}" ] && return
    for name; do
        file=$(find ${wheels:+"$wheels"} /usr/local/cuda/lib64 -name "$name" 2>/dev/null | head -1)
        [ -n "$file" ] && export "$variable=$file" LD_LIBRARY_PATH="$(dirname "$file"):${LD_LIBRARY_PATH:-}" && return
    done
}
if [ -z "$fake" ]; then
    library LOCKSTEP_CUBLASLT libcublasLt.so.13 libcublasLt.so.12
    library LOCKSTEP_CUDNN libcudnn.so.9
    library LOCKSTEP_NCCL_LIBRARY libnccl.so.2
    export LOCKSTEP_TEST_DEVICE=1
fi

device=cuda:0 peers=cuda:0 small=() model=() tiny=()
if [ -n "$fake" ]; then
    device=fake peers=cpu
    small=(--steps 3 --batch 2 --block 16 --n_embd 32 --n_head 2 --image 33 --size 64)
    model=(--n_layer 2 --vocab_size 257)
    tiny=(-test.short)
fi

held=0 failed=0 left=0
row() { printf '%-24s %5s  %s\n' "$1" "$2" "$3" | tee -a "$out/table.txt"; }
skip() { row "$1" - "not run: $2"; left=$((left + 1)); }

# why is the line of a log that says most.
why() {
    { grep -m1 -- '--- FAIL\|^panic:\|^SIG\|no device' "$1" || grep -v '^\s*$' "$1" | tail -1; } | cut -c1-100
}

# step NAME LIMIT COMMAND… runs a command under a limit of seconds and says what became of it.
step() {
    local name=$1 limit=$2 start=$SECONDS rc
    shift 2
    if [ $((total - SECONDS)) -lt 8 ]; then
        skip "$name" "no time is left"
        return 1
    fi
    [ "$limit" -le $((total - SECONDS)) ] || limit=$((total - SECONDS))
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1 &
    child=$!
    wait "$child" # a signal ends this, and no command in the foreground
    rc=$?
    child=''
    grep -h '^RESULT ' "$out/$name.log" >>"$out/results.txt"
    case $rc in
    0) row "$name" $((SECONDS - start)) held && held=$((held + 1)) ;;
    124 | 137) row "$name" $((SECONDS - start)) "FAILED: stopped after $limit s" && failed=$((failed + 1)) ;;
    *) row "$name" $((SECONDS - start)) "FAILED ($rc): $(why "$out/$name.log")" && failed=$((failed + 1)) ;;
    esac
    return $rc
}

gpu() { step "$1" "$2" ./gpu "${@:3}" --device "$device" --text text "${small[@]}"; }
gpt2() { gpu "$1" 90 gpt2 "${model[@]}" "${@:2}"; }
tests() { step "$1" "$2" "$3" "${tiny[@]}" -test.run "$4"; }

# peer NAME LIMIT COMMAND… is the same by PyTorch.
peer() {
    if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
        skip "$1" "$python has no PyTorch with transformers"
    elif [[ -n "$fake" && "$*" = *torch_compile* ]]; then
        skip "$1" "minutes on the CPU"
    else
        step "$1" "$2" "$python" peer.py "${@:3}" --device "$peers" "${small[@]}"
    fi
}

# same NAME LOG… says whether runs ended with the same weights.
same() {
    local name=$1 log sums
    shift
    sums=$(for log; do grep -h '^WEIGHTS' "$out/$log.log" 2>/dev/null | cut -d' ' -f3 || true; done)
    if [ "$(wc -l <<<"$sums")" -ne $# ]; then
        skip "$name" "a run has no weights"
    elif [ "$(sort -u <<<"$sums" | wc -l)" = 1 ]; then
        row "$name" - held && held=$((held + 1))
    else
        row "$name" - "FAILED: other bits" && failed=$((failed + 1))
    fi
}

{
    echo "Lockstep $(cat version), $(date -u +%FT%TZ)${fake:+, the fake device: figures mean nothing}"
    command -v nvidia-smi >/dev/null &&
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader 2>&1
    "$python" -c 'import torch, transformers; print("PyTorch", torch.__version__, "transformers", transformers.__version__)' 2>&1 | tail -1
    env | grep '^LOCKSTEP_'
} >"$out/machine.txt"
head -2 "$out/machine.txt"

correctness() {
    for i in 1 2 3; do step "driver-$i" 60 ./gpu devices --device "$device" || return; done # one that ends badly may do so only now and then
    step environment 20 ./lockstep env
    tests bits 150 ./internal_backend_cuda.test '^(TestBits|TestCopies|TestFlash|TestLongRows|TestRows|TestParamGrads|TestReductions|TestWideSums)'
    tests conformance 200 ./internal_backend_cuda.test '^TestConformance$'
    tests products 60 ./internal_backend_cuda.test '^(TestConv|TestAlign|TestPrograms|TestProducts|TestEpilogues|TestMemory|TestWrites|TestShapes|TestWhat)'
    if [ -n "$fake" ]; then
        skip ops "the fake's run is part of go test ./..."
        skip nccl "the fake's run is part of go test ./..."
    else
        step ops 150 env LOCKSTEP_REQUIRE_TOOLS=gpu ./tensor_optest.test -test.run '^TestDevice$'
        if [ -n "${LOCKSTEP_NCCL_LIBRARY:-}" ]; then tests nccl 30 ./comm_nccl.test '^TestLibrary'; else skip nccl "no libnccl.so.2"; fi
    fi
    gpt2 train --steps 30
    gpt2 train-again --steps 30
    LOCKSTEP_CUDA_GRAPHS=0 gpt2 train-no-graphs --steps 30
    same same-bits train train-again train-no-graphs
    if grep -q 'refuses compiled kernels' "$out"/*.log; then # by the backend's log, which then has the reason
        row cubins - "FAILED: $(grep -hm1 'refuses compiled kernels' "$out"/*.log | cut -c1-100)" && failed=$((failed + 1))
    else
        row cubins - held && held=$((held + 1))
    fi
    [ -n "$fake" ] && skip clm "the program has no fake device" && return
    local clm=(./clm --device cuda --bf16 --train_file text --n_layer 6 --n_embd 384 --n_head 6 --block_size 256 --max_steps 40 --save_strategy steps
        --save_steps 20 --eval_strategy steps --eval_steps 20 --report_to none --disable_tqdm --global_train_batch_size 32)
    step clm 60 "${clm[@]}" --per_device_train_batch_size 16 --output_dir a
    mkdir -p b && cp -r a/checkpoint-20 b/ 2>/dev/null
    step clm-resumed 60 "${clm[@]}" --per_device_train_batch_size 16 --output_dir b --resume_from_checkpoint last
    step clm-two-ranks 60 "${clm[@]}" --per_device_train_batch_size 16 --output_dir c --num_replicas 2
    step clm-recomputed 60 "${clm[@]}" --per_device_train_batch_size 16 --output_dir d --gradient_checkpointing
    for run in b c d; do
        step "clm-same-bits-$run" 20 bash -c 'cmp a/model.safetensors $0/model.safetensors || { ./lockstep diff a $0; exit 1; }' $run
    done
}

settings() {
    [ -n "$fake" ] && skip settings "the program has no fake device" && return
    step settings 500 "$python" settings.py ./clm text golden.json cuda
    grep '^WRONG' "$out/settings.log" | cut -c1-300
    step full-device 60 bash -c '! ./clm --device cuda --bf16 --train_file text --n_layer 24 --n_embd 2048 --n_head 16 --block_size 1024 --max_steps 2 --output_dir full \
        --per_device_train_batch_size 512 --report_to none --disable_tqdm >full.log 2>&1; cat full.log; grep -q "out of memory" full.log'
}

speed() {
    for i in 1 2; do gpt2 "gpt2-$i" --steps 60 --row gpt2 || return; done
    LOCKSTEP_CUDA_GRAPHS=0 gpt2 gpt2-no-graphs --steps 60 --row gpt2_no_graphs
    gpt2 gpt2-dropout --steps 60 --dropout 0.1 --row gpt2_dropout
    gpu products 60 products
    for p in 0 0.1; do gpu "attention-$p" 60 attention --dropout $p --row "attention_dropout_$p"; done
    [ -n "$fake" ] && skip resnet "minutes in the interpreter" && return
    gpu resnet 90 resnet --batch 128 --row resnet
    gpu resnet-workers 90 resnet --batch 128 --workers 4 --row resnet_workers
}

peers() {
    gpt2 gpt2-1 --steps 60 --row gpt2 --save model --curve "$out/curve-lockstep.txt" || return
    peer gpt2-compile 180 gpt2 --who torch_compile --steps 60 --load model --curve "$out/curve-torch_compile.txt"
    gpt2 gpt2-2 --steps 60 --row gpt2
    peer gpt2-eager 100 gpt2 --who torch_eager --steps 60 --load model --curve "$out/curve-torch_eager.txt"
    peer gpt2-trainer 100 gpt2 --who hf_trainer --steps 60 --load model --curve "$out/curve-hf_trainer.txt"
    peer products 60 products
    for p in 0 0.1; do peer "attention-$p" 60 attention --dropout $p --row "attention_dropout_$p"; done
    [ -n "$fake" ] && skip resnet "minutes on the CPU" && return
    peer resnet-eager 90 resnet --who torch_eager --batch 128
    gpu resnet 90 resnet --batch 128
    peer resnet-compile 150 resnet --who torch_compile --batch 128
}

# decoder NAME MODEL ARGUMENTS… trains a model of a published size, by PyTorch too.
decoder() {
    local name=$1
    config "$2" "$name.json" || return
    local run=(decoder --row "$name" "${@:3}")
    gpu "$name-1" 90 "${run[@]}" --model_config "$name.json" --save "$name" --curve "$out/curve-$name-lockstep.txt" || return
    peer "$name-compile" 200 "${run[@]}" --who torch_compile --load "$name" --curve "$out/curve-$name-torch_compile.txt"
    gpu "$name-2" 90 "${run[@]}" --model_config "$name.json"
    same "$name-same-bits" "$name-1" "$name-2"
    peer "$name-eager" 90 "${run[@]}" --who torch_eager --load "$name"
    rm -rf "$name"
}

# decoding NAME MODEL measures how a model of a published size generates.
decoding() {
    config "$2" "$1.json" || return
    gpu "$1-decode" 60 decode --model_config "$1.json" --row "$1-decode" --steps 5 --block 512 --save "$1" || return
    peer "$1-decode-eager" 90 decode --load "$1" --row "$1-decode" --steps 5 --block 512
}

# config MODEL FILE writes a model's config.json.
config() {
    step "$2" 20 "$python" -c 'import json, sys; json.dump(json.load(open("configs.json"))[sys.argv[1]]["config"], open(sys.argv[2], "w"))' "$1" "$2"
}

decoders() {
    [ -n "$fake" ] && skip decoders "minutes in the interpreter" && return
    decoder smollm2-135m HuggingFaceTB/SmolLM2-135M-Instruct --steps 40
    decoding smollm2-135m HuggingFaceTB/SmolLM2-135M-Instruct
    decoding qwen3-0.6b Qwen/Qwen3-0.6B
    decoder qwen3-0.6b Qwen/Qwen3-0.6B --steps 24 --batch 8
}

# standin TOOL PATTERN… puts a program in the path that wants these words among its arguments, and then runs the program that they name.
standin() {
    mkdir -p standins
    {
        echo "#!$BASH"
        echo 'line=" $* "'
        printf 'case $line in *%q*) ;; *) echo "want %s in:$line" >&2; exit 64 ;; esac\n' "$2" "$2"
        echo 'while [ $# -gt 0 ] && [[ $1 != ./* ]]; do shift; done'
        echo 'exec "$@"'
    } >"standins/$1"
    chmod +x "standins/$1"
}

tools() {
    if [ -n "$fake" ]; then
        standin compute-sanitizer '--error-exitcode 9'
        standin ncu '--clock-control none'
        PATH=$work/standins:$PATH
    fi
    if command -v compute-sanitizer >/dev/null; then
        local check=(compute-sanitizer --report-api-errors no --error-exitcode 9)
        step memcheck 200 "${check[@]}" --tool memcheck ./internal_backend_cuda.test -test.short -test.run '^(TestFlash|TestLongRows)'
        step racecheck 200 "${check[@]}" --tool racecheck ./internal_backend_cuda.test -test.short -test.run '^TestFlash$'
    else
        skip memcheck "no compute-sanitizer"
        skip racecheck "no compute-sanitizer"
    fi
    if command -v ncu >/dev/null; then
        step ncu 170 env LOCKSTEP_CUDA_GRAPHS=0 ncu --clock-control none --metrics gpu__time_duration.sum,dram__bytes.sum --csv \
            --launch-skip 2000 --launch-count 900 ./gpu gpt2 --steps 4 --device "$device" --text text "${small[@]}" "${model[@]}"
    else
        skip ncu "no ncu"
    fi
}

# finish writes the table and the archive, also if the day was interrupted.
finish() {
    [ $? = 0 ] || { row day - "FAILED: interrupted"; failed=$((failed + 1)); }
    [ -s "$out/results.txt" ] && ./gpu table "$out/results.txt" | tee "$out/results.md"
    echo "$held held, $failed failed, $left not run" | tee -a "$out/table.txt"
    tar -C "$out/.." -czf "$out/../$what.tar.gz" "$what" && echo "all is in $(cd "$out/.." && pwd)/$what.tar.gz"
    cd / && rm -rf "$work"
    [ $failed = 0 ] || exit 1
    [ $left = 0 ] || exit 3
    exit 0
}
trap finish EXIT
$what
exit 0
