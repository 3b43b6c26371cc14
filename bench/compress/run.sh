#!/bin/sh
# Measures each way to send less between two ranks and prints a table in Markdown. Each rank runs in a network namespace
# of its own; the link between them is limited to 100 Mbit/s, 1 Gbit/s, and not at all. Needs Linux with user
# namespaces, ip and tc, and python3 to lay out the table. --steps N is the number of steps of the run for the loss.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${BENCH_COMPRESS_INSIDE:-}" ]; then
    program=$(mktemp -d)/compress
    trap 'rm -rf "$(dirname "$program")"' EXIT
    CGO_ENABLED=0 go build -C bench -o "$program" ./compress
    BENCH_COMPRESS_INSIDE=1 PROGRAM=$program unshare -rn sh "$0" "$@"
    exit
fi
steps=400
[ "${1:-}" = --steps ] && steps=$2
unshare -n sleep 3600 &
other=$!
trap 'kill $other' EXIT
sleep 0.5
peer="nsenter -t $other -n"
ip link add near type veth peer name far
ip link set far netns $other
ip addr add 10.77.0.1/24 dev near
$peer ip addr add 10.77.0.2/24 dev far
ip link set lo up
ip link set near up
$peer ip link set lo up
$peer ip link set far up

limit() { # rate; "no" for none
    tc qdisc del dev near root 2>/dev/null || true
    $peer tc qdisc del dev far root 2>/dev/null || true
    [ "$1" = no ] && return
    tc qdisc add dev near root tbf rate "$1" burst 256kb latency 100ms
    $peer tc qdisc add dev far root tbf rate "$1" burst 256kb latency 100ms
}

port=29600
token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
job() { # flags
    port=$((port + 1))
    export MASTER_ADDR=10.77.0.1 MASTER_PORT=$port WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 LOCKSTEP_JOB_TOKEN=$token
    RANK=1 $peer "$PROGRAM" "$@" &
    job=$!
    RANK=0 "$PROGRAM" "$@"
    wait $job
}

row() { # name, flags of the run for the loss alone, flags
    name=$1
    only=$2
    shift 2
    for rate in 100mbit 1gbit; do
        limit $rate
        job "$@" | sed "s/^/$name\t$rate\t/"
    done
    limit no
    # shellcheck disable=SC2086 # several words
    job "$@" --warm_up 16 --steps $((steps - 16)) $only | sed "s/^/$name\tno\t/"
}

{
    row no ""
    row bf16 "" --ddp_comm_hook bf16
    row fp16 "" --ddp_comm_hook fp16
    row int8 "" --ddp_comm_hook int8
    row "power_sgd, rank 1" "" --ddp_comm_hook power_sgd --ddp_comm_state_option '{"start_powerSGD_iter":10}'
    row "power_sgd, rank 4" "" --ddp_comm_hook power_sgd \
        --ddp_comm_state_option '{"start_powerSGD_iter":10,"matrix_approximation_rank":4}'
    row "power_sgd, rank 4, start_powerSGD_iter 100" \
        '--ddp_comm_state_option {"start_powerSGD_iter":100,"matrix_approximation_rank":4}' \
        --ddp_comm_hook power_sgd \
        --ddp_comm_state_option '{"start_powerSGD_iter":10,"matrix_approximation_rank":4}'
    row "top_k, 1 %" "" --ddp_comm_hook top_k
    row "local_sgd_steps 8" "" --local_sgd_steps 8
    row "local_sgd_steps 8, start_local_sgd_iter 100" "--start_local_sgd_iter 100" --local_sgd_steps 8
} | python3 -c '
import json, sys
rows = {}
for line in sys.stdin:
    name, rate, text = line.rstrip("\n").split("\t")
    rows.setdefault(name, {})[rate] = json.loads(text)
print("| | KB per step | 100 Mbit/s, ms | 1 Gbit/s, ms | no limit, ms | loss |")
print("|---|--:|--:|--:|--:|--:|")
for name, r in rows.items():
    times = " | ".join("%.0f" % (1000 * r[k]["seconds"]) for k in ("100mbit", "1gbit", "no"))
    print("| %s | %.0f | %s | %.3f |" % (name, r["1gbit"]["bytes"] / 1000, times, r["no"]["loss"]))
print("%d parameters" % r["no"]["parameters"], file=sys.stderr)
'
