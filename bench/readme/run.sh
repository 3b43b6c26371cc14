#!/usr/bin/env bash
# Records a run of examples/clm in a terminal of 100 × 30 and draws the pictures of the README from it.
# Needs script(1) of util-linux.
# Arguments go to examples/clm. DRAW holds flags for the drawing, for example DRAW="--until 77% --head 9 --tail 16".
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CGO_ENABLED=0 go build -o "$dir/clm" ./examples/clm
(cd "$dir" && script --quiet --return --command "stty columns 100 rows 30; TERM=xterm-256color ./clm $*" transcript </dev/null)
mkdir -p bench/readme/testdata
cp "$dir/transcript" bench/readme/testdata/clm.txt
cp "$dir/out/clm/trainer_state.json" bench/readme/testdata/clm.json
# shellcheck disable=SC2086
go run ./bench/readme --command "go run ./examples/clm${*:+ $*}" ${DRAW:-}
