#!/bin/sh
# Compares sharded models with data parallelism, and with PyTorch's fully_shard over gloo and DeepSpeed's stage 3, in
# training steps of GPT-2 (124M parameters, 2 × 512 tokens per rank) on two processes. Flags are those of bench/ddp, which it runs; for a quick
# look: run.sh --n_layer 4 --n_embd 256 --n_head 4 --vocab_size 4096 --batch 8 --block 128
set -eu
cd "$(dirname "$0")/.."
settings=$(./peers.sh)
eval "$settings"
exec go run ./ddp --n_layer 12 --n_embd 768 --n_head 12 --vocab_size 50257 --batch 2 --block 512 --steps 3 \
	--ddp_bucket_cap_mb 25 --contenders one,shm,shm:zero_1,shm:zero_2,shm:shard_grad_op,shm:full_shard,shm:full_shard_shared,torch-fsdp2,torch-deepspeed3 "$@"
