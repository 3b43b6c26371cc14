#!/bin/sh
# Runs the comparison with PyTorch's DistributedDataParallel. PYTHON names an interpreter that has torch and transformers; without it a virtual environment
# is made in a temporary folder. Flags are those of bench/ddp, for example: run.sh --ranks 2 --svg step.svg
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${PYTHON:-}" ]; then
    venv=${TMPDIR:-/tmp}/bench-ddp-venv
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/python" -c 'import torch, transformers' 2>/dev/null || "$venv/bin/pip" install --quiet torch transformers
    PYTHON=$venv/bin/python
fi
export PYTHON
exec go run ./bench/ddp "$@"
