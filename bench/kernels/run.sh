#!/bin/sh
# Compares Lockstep with PyTorch, OpenBLAS and GoMLX row by row; see main.go, and ../peers.sh for what is built.
# Usage: [PYTHON=venv/bin/python] run.sh [FLAGS]    for example: run.sh --threads 1 --rounds 3 --rows 'attention|step'
set -eu
cd "$(dirname "$0")/.."
settings=$(./peers.sh)
eval "$settings"
exec go run ./kernels "$@"
