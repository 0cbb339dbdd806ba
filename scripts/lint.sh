#!/bin/sh
# Builds golangci-lint from the module in tools/lint, once for each version of
# it and of Go, and runs it.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
version=$(sed -n 's/^.*github.com\/golangci\/golangci-lint\/v2 \(v[^ ]*\).*/\1/p' tools/lint/go.mod)
tool=$PWD/build/golangci-lint-$version-$("$go" env GOVERSION)
if [ ! -x "$tool" ]; then
	echo "building golangci-lint $version"
	mkdir -p build
	rm -f build/golangci-lint-*
	CGO_ENABLED=0 "$go" build -C tools/lint -ldflags '-s -w' -o "$tool" github.com/golangci/golangci-lint/v2/cmd/golangci-lint
fi
exec "$tool" run --timeout 20m "${@:-./...}"
