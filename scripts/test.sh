#!/bin/sh
# test.sh all|unit|e2e [FLAG or PACKAGE...]: runs the tests and ends with one
# line, "N passed, N failed, N skipped". Those below tests/ use dist/kombi.
set -eu
kind=${1:?all, unit or e2e}
shift
cd "$(dirname "$0")/.."

case " $* " in
*' ./'*) packages='' ;;
*)
	case $kind in
	unit) packages='./pkg/... ./cmd/... ./scripts/... ./manifests/...' ;;
	e2e) packages='./tests/...' ;;
	all) packages='./...' ;;
	esac
	;;
esac
[ -x build/testsum ] || CGO_ENABLED=0 scripts/build.sh build/testsum ./scripts/testsum "-s -w"

# Everything is compiled first, by all cores.
# shellcheck disable=SC2086 # a list of words
[ -z "$packages" ] || "${GO:-go}" list -export -deps -test $packages >/dev/null

# Test programs share the machine's cgroups, mounts and two cores: one package
# at a time keeps their deadlines honest.
mkdir -p build
# shellcheck disable=SC2086 # a list of words
{ "${GO:-go}" test -json -p 1 -timeout 20m $packages "$@" 2>&1 || true; } | build/testsum
