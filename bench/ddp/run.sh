#!/bin/sh
# Runs the comparison with PyTorch's DistributedDataParallel; ../peers.sh says what is installed where it is missing.
# Flags are those of bench/ddp, which runs in the folder bench, for example: run.sh --ranks 2 --svg ../out/step
set -eu
cd "$(dirname "$0")/.."
settings=$(./peers.sh)
eval "$settings"
exec go run ./ddp "$@"
