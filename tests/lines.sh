#!/usr/bin/env bash
# Prints the lines of a commit by folder, over all modules of the repository, as a table in Markdown.
#
# Usage: tests/lines.sh [COMMIT]    without one: HEAD
#
# Tests are files of Go's tests and Go under testdata; packages that only tests import count as code. Generated are Go
# and PTX; all assembly is generated, except for 260 lines. Scripts are in other languages than Go. Data and compressed
# files are not counted.
set -euo pipefail
commit=$(git rev-parse --verify "${1:-HEAD}^{commit}")
cd "$(git rev-parse --show-toplevel)"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
git archive "$commit" | tar -x -C "$dir"
cd "$dir"
find . -type f -printf '%P\n' | LC_ALL=C sort | while IFS= read -r file; do
	case $file in
	*.s) kind=assembly ;;
	*_test.go | */testdata/*.go) kind=tests ;;
	*.go) grep -qm1 '^// Code generated' "$file" && kind=generated || kind=code ;;
	*.ptx) kind=generated ;;
	*.py | *.sh | *.c | *.cu | *.cuh | *.mjs | .ci/run) kind=scripts ;;
	*.md) kind=documents ;;
	*) continue ;;
	esac
	case $file in
	internal/backend/* | internal/cuda/* | internal/kernels/* | internal/ptx/*)
		folder=${file#internal/}
		folder=internal/${folder%%/*}
		;;
	*/*) folder=${file%%/*} ;;
	*) folder=/ ;;
	esac
	echo "$folder $kind $(wc -l <"$file")"
done | awk '
	function dotted(n, s) {
		for (s = n + 0 ""; s ~ /[0-9][0-9][0-9][0-9]/;) sub(/[0-9][0-9][0-9]($|,)/, ",&", s)
		return s
	}
	function row(name, key, i) {
		printf "| %s ", name
		for (i = 1; i <= n; i++) printf "| %s ", (key, kinds[i]) in lines ? dotted(lines[key, kinds[i]]) : ""
		print "|"
	}
	BEGIN { n = split("code tests assembly generated scripts documents", kinds) }
	{
		if (!($1 in seen)) { seen[$1] = 1; order[++folders] = $1 }
		lines[$1, $2] += $3
		lines["all", $2] += $3
	}
	END {
		print "| folder | code | tests | assembly | generated | scripts | documents |"
		print "|---|--:|--:|--:|--:|--:|--:|"
		for (i = 1; i <= folders; i++) row("`" order[i] "`", order[i])
		row("all", "all")
	}'
