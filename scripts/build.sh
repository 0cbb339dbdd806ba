#!/bin/sh
# build.sh OUTPUT PACKAGE LDFLAGS [FLAG...]: builds one static Go program. OUTPUT
# keeps its time when the program did not change, so that make stops there.
# MODULE is the folder of the module that the package belongs to, if not this one.
set -eu
out=$1 package=$2 ldflags=$3
shift 3
cd "$(dirname "$0")/.."

# The linker skips its work when the file that it wrote last is still right,
# and gives it a new time: OUTPUT is a copy that changes only with its bytes.
linked=$(dirname "$out")/linked/$(basename "$out")
mkdir -p "$(dirname "$linked")"
began=$(date +%s)
log=$(mktemp)
trap 'rm -f "$log" "$out.new"' EXIT
if ! "${GO:-go}" build -C "${MODULE:-.}" "$@" -ldflags "$ldflags" -o "$PWD/$linked" "$package" 2>"$log"; then
	cat "$log" >&2
	echo "building $package failed" >&2
	exit 1
fi
# The C library warns that dlopen and name service calls would need its shared
# files; the code that has them is linked but never called.
grep -v -e '^# ' -e 'in function' -e 'in statically linked applications requires at runtime' "$log" >&2 || true

if cmp -s "$linked" "$out"; then
	exit 0
fi
scripts/check-static.sh "$linked"
cp "$linked" "$out.new"
mv "$out.new" "$out"
printf '%s: %s MB, %ss\n' "$out" "$(($(wc -c <"$out") / 1000000))" "$(($(date +%s) - began))"
