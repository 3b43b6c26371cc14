#!/bin/sh
# Compares gemm.Float32 with OpenBLAS's sgemm on one core: alternately ours, theirs, ours, theirs …, since a machine's speed drifts, and prints for each
# size the median GFLOP/s of both and the median of the ratios of neighbouring runs.
#
# The peer is peer/openblas.c. Needs Go, a C compiler and OpenBLAS with its header (Debian: libopenblas-dev).
# Usage: run.sh [ROUNDS]    environment: SIZES ("256 512 1024 2048"), LOCKSTEP_KERNELS, OPENBLAS_CORETYPE
#
# OPENBLAS_CORETYPE is set because OpenBLAS 0.3.21 does not know newer processors and falls back to kernels of SSE3 times: left alone, it would lose by far.
set -eu
cd "$(dirname "$0")"
rounds=${1:-7}
sizes=${SIZES:-256 512 1024 2048}
export OPENBLAS_CORETYPE="${OPENBLAS_CORETYPE:-SkylakeX}" OPENBLAS_NUM_THREADS=1 GOMAXPROCS=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/ours" ./ours
"${CC:-cc}" -O2 -o "$work/openblas" peer/openblas.c -lopenblas

# shellcheck disable=SC2086 # sizes is a list
"$work/ours" 64 2>&1 >/dev/null | sed 's/^/ours:   /'
"$work/openblas" 64 2>&1 >/dev/null | sed 's/^/theirs: /'
for round in $(seq "$rounds"); do
  # shellcheck disable=SC2086
  "$work/ours" $sizes 2>/dev/null | sed "s/^/ours $round /" >>"$work/results"
  # shellcheck disable=SC2086
  "$work/openblas" $sizes 2>/dev/null | sed "s/^/theirs $round /" >>"$work/results"
done

awk '
  function median(list, count,    i, j, t) {
    for (i = 2; i <= count; i++)
      for (j = i; j > 1 && list[j-1] > list[j]; j--) { t = list[j]; list[j] = list[j-1]; list[j-1] = t }
    return count % 2 ? list[(count+1)/2] : (list[count/2] + list[count/2+1]) / 2
  }
  { speed[$1, $3, $2] = $4; if ($2 > rounds) rounds = $2; if (!($3 in seen)) { seen[$3] = 1; size[++sizes] = $3 } }
  END {
    printf "%6s %14s %16s %8s\n", "size", "ours GFLOP/s", "theirs GFLOP/s", "ratio"
    for (s = 1; s <= sizes; s++) {
      for (r = 1; r <= rounds; r++) {
        x[r] = speed["ours", size[s], r]; y[r] = speed["theirs", size[s], r]; q[r] = x[r] / y[r]
      }
      printf "%6d %14.1f %16.1f %8.3f\n", size[s], median(x, rounds), median(y, rounds), median(q, rounds)
    }
  }' "$work/results"
