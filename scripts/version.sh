#!/bin/sh
# Prints what a build is stamped with, as NAME=value lines that both make and
# sh can read. A commit always gives the same values, so builds reproduce.
#
# VERSION holds the release being worked on. The commit that carries that tag,
# with a clean tree, is the release; everything else is a development build
# whose version says which commit it is.
set -eu
cd "$(dirname "$0")/.."

release=$(cat VERSION)
kubernetes=$(sed -n 's/^[[:space:]]*k8s.io\/kubernetes \(v[^ ]*\).*/\1/p' go.mod | head -n 1)
containerd=$(sed -n 's/^[[:space:]]*github.com\/containerd\/containerd\/v2 \(v[^ ]*\).*/\1/p' go.mod | head -n 1)
cri_tools=$(sed -n 's/^[[:space:]]*sigs.k8s.io\/cri-tools \(v[^ ]*\).*/\1/p' go.mod | head -n 1)

# safe.directory: under sudo the checkout belongs to somebody else.
git() { command git -c safe.directory='*' "$@" 2>/dev/null; }

commit=''
date=''
version=$release-dev
if commit=$(git rev-parse HEAD); then
	date=$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)
	dirty=''
	[ -z "$(git status --porcelain | head -n 1)" ] || dirty=dirty
	if [ -z "$dirty" ] && [ "$(git describe --tags --exact-match || true)" = "$release" ]; then
		version=$release
	else
		version=$release-dev.g$(git rev-parse --short=12 HEAD)${dirty:+.dirty}
	fi
	commit=$commit${dirty:+-dirty}
else
	commit=''
fi

echo "VERSION=$version+k8s${kubernetes#v}"
echo "KUBERNETES=$kubernetes"
echo "KUBERNETES_MAJOR=$(echo "${kubernetes#v}" | cut -d. -f1)"
echo "KUBERNETES_MINOR=$(echo "${kubernetes#v}" | cut -d. -f2)"
echo "CONTAINERD=$containerd"
echo "CRI_TOOLS=$cri_tools"
echo "COMMIT=$commit"
echo "DATE=$date"
