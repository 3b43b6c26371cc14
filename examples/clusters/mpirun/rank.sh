#!/bin/sh
# Runs a rank under MPICH, which kills all ranks as soon as one has failed, before they can print which.
#
#   mpiexec -n 4 examples/clusters/mpirun/rank.sh out/bin/clm --output_dir out/clm
#
# It prints the rank that failed, and gives the others time to end by themselves.
trap : TERM INT # they are the program's: it saves
"$@"
code=$?
if [ "$code" -ne 0 ]; then
	echo "rank $PMI_RANK: exit code $code" >&2
	sleep 2
fi
exit "$code"
