#!/bin/sh
# Fails when generating again changes a file. It compares before and after, so
# it works in a tree with changes, and puts the files back.
set -eu
cd "$(dirname "$0")/.."
sums=$(mktemp -d)
trap 'rm -rf "$sums"' EXIT

git -c safe.directory='*' ls-files -co --exclude-standard pkg manifests cmd | while read -r file; do
	[ ! -f "$file" ] || sha256sum "$file"
done >"$sums/before"
tar -cf "$sums/files.tar" -T - <<LIST
$(cut -c67- "$sums/before")
LIST
scripts/generate.sh
git -c safe.directory='*' ls-files -co --exclude-standard pkg manifests cmd | while read -r file; do
	[ ! -f "$file" ] || sha256sum "$file"
done >"$sums/after"
if ! changed=$(diff "$sums/before" "$sums/after" | sed -n 's/^[<>] [0-9a-f]*  //p' | sort -u) || [ -n "$changed" ]; then
	tar -xf "$sums/files.tar"
	echo "these files are not what 'make generate' makes: run it and commit them" >&2
	echo "$changed" >&2
	exit 1
fi
echo "generated code is up to date"
