#!/bin/sh
# Compiles the Go parts for arm64 without linking them: enough to find what
# does not build there, without a cross compiler for the C parts. Code that
# needs cgo (SQLite, seccomp) has its fallback compiled instead. The C program
# is compiled too where a cross compiler is installed.
set -eu
cd "$(dirname "$0")/.."
export GOARCH=arm64 CGO_ENABLED=0
began=$(date +%s)
# -N -l: the code is thrown away, so it need not be fast.
"${GO:-go}" build -gcflags=all='-N -l' ./cmd/... ./pkg/...
"${GO:-go}" build -gcflags=all='-N -l' -o /dev/null github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
if command -v aarch64-linux-gnu-gcc >/dev/null; then
	aarch64-linux-gnu-gcc -Os -Wall -Wextra -Werror -nostdlib -ffreestanding -c -o /dev/null cmd/pause/pause.c
fi
echo "arm64: compiled in $(($(date +%s) - began))s"
