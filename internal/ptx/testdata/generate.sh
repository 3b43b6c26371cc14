#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the .ptx files from the .cu files. The compiler comes from PyPI and needs a host g++:
#   pip install nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 \
#     nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
# LOCKSTEP_NVCC names the program, site-packages/nvidia/cu13/bin/nvcc.
set -eu
cd "$(dirname "$0")"
for f in *.cu; do
  "${LOCKSTEP_NVCC:-nvcc}" -ptx -arch=compute_80 -fmad=false -O3 -std=c++17 "$f" -o "${f%.cu}.ptx"
done
