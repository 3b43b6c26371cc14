#!/bin/sh
# Runs bench/mesh with two ranks in network namespaces of their own. The link between them has a rate, or "no" for no
# limit. The other flags are those of bench/mesh, for example: link.sh 1gbit --contenders tp --micro_batches 1 --batch 8
# PROGRAM is a built bench/mesh. Needs Linux with user namespaces, ip and tc.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${BENCH_MESH_INSIDE:-}" ]; then
    if [ -z "${PROGRAM:-}" ]; then
        PROGRAM=$(mktemp -d)/mesh
        trap 'rm -rf "$(dirname "$PROGRAM")"' EXIT
        CGO_ENABLED=0 go build -C bench -o "$PROGRAM" ./mesh
    fi
    BENCH_MESH_INSIDE=1 PROGRAM=$PROGRAM unshare -rn sh "$0" "$@"
    exit
fi
rate=$1
shift
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
if [ "$rate" != no ]; then
    tc qdisc add dev near root tbf rate "$rate" burst 256kb latency 100ms
    $peer tc qdisc add dev far root tbf rate "$rate" burst 256kb latency 100ms
fi
"$PROGRAM" --peer $other --address 10.77.0.1 "$@"
