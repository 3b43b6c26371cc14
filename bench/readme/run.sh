#!/usr/bin/env bash
# Records go run ./examples/clm in a terminal of 80 × 24 and draws the pictures of the README from it. Needs script(1)
# of util-linux. Arguments are those of the drawing, for example: run.sh --head 30 --note 'two cores of a Zen 4'
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CGO_ENABLED=0 go build -o "$dir/clm" ./examples/clm
(cd "$dir" && script --quiet --return --command "stty columns 80 rows 24; TERM=xterm-256color ./clm" transcript </dev/null)
mkdir -p bench/readme/testdata
# without the lines of script(1), which have the date and the terminal's name
sed -e '1{/^Script started/d}' -e '${/^Script done/d}' "$dir/transcript" >bench/readme/testdata/clm.txt
cp "$dir/out/clm/trainer_state.json" bench/readme/testdata/clm.json
go run -C bench ./readme "$@"

# And lockstep prove, the picture at the README's begin.
CGO_ENABLED=0 go build -o "$dir/lockstep" ./cmd/lockstep
(cd "$dir" && script --quiet --return --command "stty columns 80 rows 24; TERM=xterm-256color ./lockstep prove" \
	proof </dev/null)
sed -e '1{/^Script started/d}' -e '${/^Script done/d}' "$dir/proof" >bench/readme/testdata/prove.txt
go run -C bench ./readme --transcript readme/testdata/prove.txt --state '' --name prove --head 20 \
	--command 'lockstep prove'
