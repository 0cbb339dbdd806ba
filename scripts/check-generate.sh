#!/bin/sh
# Fails when generating again changes a file. It generates in a copy, so nothing
# in this tree changes, and it works with uncommitted changes too.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git -c safe.directory='*' ls-files -co --exclude-standard | while read -r file; do
	[ ! -f "$file" ] || printf '%s\n' "$file"
done >"$work/list"
mkdir "$work/before" "$work/after"
tar -cf - -T "$work/list" | tar -xf - -C "$work/before"
cp -a "$work/before/." "$work/after"
(cd "$work/after" && scripts/generate.sh)
if ! diff -rq "$work/before" "$work/after" >"$work/diff"; then
	echo "committed generated code is not what 'make generate' makes; run it and commit:" >&2
	sed -n -e "s|^Files .* and $work/after/\(.*\) differ$|\1|p" -e "s|^Only in $work/after/*\(.*\): |\1/|p" "$work/diff" >&2
	exit 1
fi
echo "generated code is up to date"
