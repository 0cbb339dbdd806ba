#!/bin/sh
# Prints the linker flags that stamp Kombi's and the upstream parts' versions.
# The linker reads them: changing them compiles nothing again.
set -eu
eval "$("$(dirname "$0")/version.sh")"

stamp() { printf ' -X %s=%s' "$1" "$2"; }

own=github.com/kombi-k8s/kombi/pkg/version
stamp $own.version "$VERSION"
stamp $own.kubernetes "$KUBERNETES"
stamp $own.commit "$COMMIT"
stamp $own.date "$DATE"

# Upstream writes these with its own build; unstamped, the API server would
# call itself v0.0.0 and clients would refuse to talk to it.
case $COMMIT in
*-dirty) tree=dirty ;;
*) tree=clean ;;
esac
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	stamp $package.gitVersion "$KUBERNETES+kombi"
	stamp $package.gitMajor "$KUBERNETES_MAJOR"
	stamp $package.gitMinor "$KUBERNETES_MINOR"
	stamp $package.gitCommit "${COMMIT%-dirty}"
	stamp $package.gitTreeState "$tree"
	[ -z "$DATE" ] || stamp $package.buildDate "$DATE"
done
stamp github.com/containerd/containerd/v2/version.Version "$CONTAINERD"
stamp sigs.k8s.io/cri-tools/pkg/version.Version "$CRI_TOOLS"
stamp github.com/containerd/containerd/v2/version.Package github.com/containerd/containerd/v2
echo
