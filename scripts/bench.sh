#!/bin/sh
# bench.sh [FLAG...]: measures dist/kombi and, in the same run, the same upstream
# components as separate processes; see tests/bench.
set -eu
cd "$(dirname "$0")/.."
scripts/build.sh build/bench/bench ./tests/bench "-s -w -extldflags -static"
exec build/bench/bench "$@"
