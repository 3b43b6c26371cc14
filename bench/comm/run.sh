#!/bin/sh
# Installs the peers where they are missing and runs the comparison. PYTHON names an interpreter that has PyTorch;
# without it a virtual environment is made in a temporary folder. Needs a Debian system and the right to install
# packages for Open MPI.
set -eu
cd "$(dirname "$0")/.."
if ! command -v mpicc >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openmpi-bin libopenmpi-dev
fi
if [ -z "${PYTHON:-}" ]; then
    venv=${TMPDIR:-/tmp}/bench-comm-venv
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/python" -c 'import torch' 2>/dev/null || "$venv/bin/pip" install --quiet torch --index-url https://download.pytorch.org/whl/cpu || "$venv/bin/pip" install --quiet torch
    PYTHON=$venv/bin/python
fi
export PYTHON
exec go run -tags mpi ./comm "$@"
