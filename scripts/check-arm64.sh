#!/bin/sh
# Checks that the Go parts compile for arm64, without a C compiler for it: the
# programs that need no C are built; everything is type-checked. Code that needs
# cgo (SQLite, seccomp) is checked with its fallback, so it has to have one. The
# C program is compiled too where a cross compiler is installed.
set -eu
cd "$(dirname "$0")/.."
began=$(date +%s)
CGO_ENABLED=0 scripts/build.sh build/typecheck ./scripts/typecheck '-s -w'
export GOARCH=arm64 CGO_ENABLED=0
for program in ./cmd/launcher ./cmd/kombi-cni github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2; do
	"${GO:-go}" build -o /dev/null "$program"
done
build/typecheck ./cmd/... ./pkg/...
if command -v aarch64-linux-gnu-gcc >/dev/null; then
	for program in pause shim; do
		aarch64-linux-gnu-gcc -Os -Wall -Wextra -Werror -nostdlib -ffreestanding -c -o /dev/null "cmd/$program/$program.c"
	done
fi
echo "arm64: checked in $(($(date +%s) - began))s"
