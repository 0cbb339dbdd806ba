#!/bin/sh
# check-size.sh FILE MIB: fails when FILE is larger than MIB mebibytes.
set -eu
size=$(wc -c <"$1")
if [ "$size" -gt $(($2 * 1048576)) ]; then
	echo "$1 is $((size / 1048576)) MiB, over the limit of $2 MiB: see what grew with 'go version -m' and 'make LEVEL=19'" >&2
	exit 1
fi
echo "$1: $((size / 1048576)) MiB of at most $2"
