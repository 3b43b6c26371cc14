#!/bin/sh
# Compares Lockstep with PyTorch row by row; see main.go. PYTHON names an interpreter with PyTorch.
# Usage: PYTHON=venv/bin/python run.sh [FLAGS]    for example: run.sh --threads 1 --rounds 3 --rows 'attention|step'
set -eu
cd "$(dirname "$0")/../.."
: "${PYTHON:?want a Python interpreter with PyTorch}"
exec go run ./bench/kernels "$@"
