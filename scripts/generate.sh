#!/bin/sh
# Runs every go:generate line of the repository, except with GENERATE_ONLY set
# to package patterns.
set -eu
cd "$(dirname "$0")/.."
# shellcheck disable=SC2086 # a list of words
exec "${GO:-go}" generate ${GENERATE_ONLY:-./pkg/... ./manifests/... ./docs/...}
