#!/bin/sh
# Prints the Go files of this repository that people write.
cd "$(dirname "$0")/.." || exit
find . -name '*.go' -not -path './build/*' -not -path './.git/*' -not -path '*/testdata/*'
