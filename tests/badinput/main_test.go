// Package badinput runs the real program with what people get wrong: flags, files, folders, ports, mounts and
// archives. Each row asks for one sentence with the cause and the next action, a failing exit code, no trace of a
// crash, and nothing half-written.
//
// The rows run in namespaces of their own (see tests/e2e/harness), so that mounts, ports and servers stay there.
package badinput

import (
	"os"
	"testing"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, func() error { return nil })) }
