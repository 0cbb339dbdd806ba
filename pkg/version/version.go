// Package version holds what a Kombi binary says about itself. The values are
// stamped by the linker (see scripts/version.sh) and never change at run time;
// a binary built without the Makefile says that it is a development build.
package version

import (
	"fmt"
	"runtime"
	"strings"
)

// Stamped with -ldflags -X. They are variables only because the linker cannot
// set constants; nothing assigns them.
var (
	version    = "v0.0.0-unstamped"
	kubernetes = ""
	commit     = ""
	date       = ""
)

// Info is one binary's identity, in the form that `kombi version -o json` prints.
type Info struct {
	// Version is the release and the Kubernetes version in it, as a semantic
	// version with build metadata: v0.1.0+k8s1.37.2.
	Version string `json:"version"`
	// Kubernetes is the upstream version, for example v1.37.2.
	Kubernetes string `json:"kubernetes"`
	// Commit is the full git commit, with "-dirty" after it when the tree had
	// changes; empty when the source was not a git checkout.
	Commit string `json:"commit,omitempty"`
	// Date is the time of that commit in RFC 3339, UTC: the same source always
	// gives the same binary.
	Date string `json:"date,omitempty"`
	// Go is the toolchain that built the binary.
	Go string `json:"go"`
	// Platform is the operating system and architecture, as in linux/amd64.
	Platform string `json:"platform"`
}

// Get returns the identity of the running binary.
func Get() Info {
	return Info{
		Version:    version,
		Kubernetes: kubernetes,
		Commit:     commit,
		Date:       date,
		Go:         runtime.Version(),
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
	}
}

// String returns the version alone: v0.1.0+k8s1.37.2.
func String() string { return version }

// Kubernetes returns the Kubernetes version in the binary: v1.37.2.
func Kubernetes() string { return kubernetes }

// String is the multi-line text of `kombi version`.
func (i Info) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kombi %s\n", i.Version)
	if i.Kubernetes != "" {
		fmt.Fprintf(&b, "kubernetes %s\n", i.Kubernetes)
	}
	if i.Commit != "" {
		fmt.Fprintf(&b, "commit %s (%s)\n", i.Commit, i.Date)
	}
	fmt.Fprintf(&b, "%s %s\n", i.Go, i.Platform)
	return b.String()
}
