#!/bin/sh
# Runs the comparison with PyTorch's DistributedDataParallel; ../peers.sh says what is installed where it is missing.
# Flags are those of bench/ddp, for example: run.sh --ranks 2 --svg out/step
set -eu
cd "$(dirname "$0")/../.."
settings=$(bench/peers.sh)
eval "$settings"
exec go run ./bench/ddp "$@"
