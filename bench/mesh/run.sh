#!/bin/sh
# Runs the comparison with PyTorch's pipelines; ../peers.sh says what is installed where it is missing.
# Flags are those of bench/mesh, for example: run.sh --rounds 5
set -eu
cd "$(dirname "$0")/.."
settings=$(./peers.sh)
eval "$settings"
exec go run ./mesh "$@"
