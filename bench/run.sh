#!/usr/bin/env bash
# Measures Lockstep beside its peers on this machine and prints one table of ratios, with the machine's own ceilings, and a line RATIO <row> <threads> <value>
# for each row. docs/performance.md says what the rows are.
#
# Usage: bench/run.sh [--quick] [--variant avx2] [OUTPUT]
#
# --variant avx2 holds both sides to the instructions that most processors have, on any that has more.
# --quick leaves out what takes long and ends in under 8 minutes when the peers are built; without it, in 20 to 40 minutes. OUTPUT, by default
# out/bench/results.txt, gets what was measured; bench/report makes the document's table and figure of it. See peers.sh for PYTHON and what is built.
# Progress, with the seconds since the start, goes to the standard error.
set -euo pipefail
cd "$(dirname "$0")/.."
quick= variant=
while :; do
    case ${1:-} in
    --quick) quick=--quick ;;
    --variant)
        variant=${2:-}
        [ "$variant" = avx2 ] || { echo "bench/run.sh: --variant $variant: want avx2, the one that both sides can be held to" >&2; exit 2; }
        shift
        ;;
    -*) echo "bench/run.sh: no option $1: want --quick or --variant avx2" >&2; exit 2 ;;
    *) break ;;
    esac
    shift
done
output=${1:-out/bench/results.txt}
settings=$(bench/peers.sh)
eval "$settings"
if [ -n "$variant" ]; then
    export LOCKSTEP_KERNELS=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
fi
mkdir -p "$(dirname "$output")"
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -C bench -o "$bin/" ./kernels ./clm ./loop ./report

# show runs a benchmark, whose lines go to the output and, as progress, to the terminal.
show() {
    (cd bench && "$@") | tee -a "$output" | while IFS= read -r line; do printf '%5d s  %s\n' "$SECONDS" "$line" >&2; done
}

{
    field() { sed -n "s/^$1[^:]*: //p" /proc/cpuinfo | sed -n 1p; }
    echo "MACHINE $(field 'model name') (family $(field 'cpu family'), model $(field model)), $(nproc --all) cores, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo) of memory"
    echo "MACHINE $(date -u +%Y-%m-%d), $(uname -s), $(go version | cut -d ' ' -f 3), Lockstep $(git describe --always --dirty)${quick:+, a quick run}${variant:+, both sides held to AVX2}"
    echo "MACHINE Load average before the run $(cut -d ' ' -f 1 /proc/loadavg)"
} >"$output"

if [ -n "$quick" ]; then
    show "$bin/kernels" --quick --rounds 3 --turn 25ms
    show "$bin/clm" --steps 40 --eval 80000 --rounds 1 --ids=false
else
    show "$bin/kernels" --rounds 4 --turn 150ms
    show "$bin/clm" --steps 200 --rounds 2
    for threads in 1 2; do show "$bin/loop" --threads $threads; done
fi
echo "$SECONDS seconds" >&2
echo "MACHINE Load average after the run $(cut -d ' ' -f 1 /proc/loadavg)" >>"$output"
"$bin/report" "$output"
