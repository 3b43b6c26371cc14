#!/usr/bin/env bash
# Packs what a machine with a GPU needs to try and measure Lockstep, into a folder of under 64 MiB: programs and tests built with the tag cuda, the texts that
# they train on, the peers' script, and day.sh, which runs it all there. That machine needs NVIDIA's driver; Go and a network it need not have.
#
# Usage: bench/gpu/pack.sh DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 1 ] || { sed -n '2,5s/^# \?//p' "$0" >&2; exit 2; }
dir=$(mkdir -p "$1" && cd "$1" && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
export CGO_ENABLED=0
build=(-tags cuda -trimpath -ldflags '-s -w')

mkdir "$stage/text"
go build "${build[@]}" -o "$stage/" ./cmd/lockstep ./examples/clm
go build -C bench "${build[@]}" -o "$stage/" ./gpu
for p in internal/backend/cuda tensor/optest comm/nccl; do
    go test "${build[@]}" -c -o "$stage/${p//\//_}.test" "./$p"
done
for f in docs/*.md tensor/*.go nn/*.go trainer/*.go internal/backend/*/*.go; do cp "$f" "$stage/text/${f//\//_}"; done
cp bench/gpu/{peer,settings}.py models/transformer/testdata/{golden,configs}.json "$stage/"
git describe --always --dirty >"$stage/version"
# The binaries have most of their bytes in common, which a large window finds.
tar -C "$stage" -cf - . | xz -T0 --lzma2=preset=6,dict=192MiB >"$dir/lockstep.tar.xz"
cp bench/gpu/day.sh "$dir/"
bytes=$(du -sb "$dir" | cut -f1)
echo "$dir: $((bytes >> 20)) MiB"
[ "$bytes" -lt $((64 << 20)) ] || { echo "$dir has $bytes bytes: want less than 64 MiB" >&2; exit 1; }
