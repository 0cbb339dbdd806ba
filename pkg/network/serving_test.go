package network

import (
	"testing"
)

// A node that starts again has to be Ready before it knows everything, or its running
// pods are taken out of their Services.
func TestNodeServesWhileItStartsAgain(t *testing.T) {
	opts := Options{CNIConfDir: t.TempDir(), SocketPath: "/run/x.sock"}
	serving := func() bool { return newPods(opts, nil, nil, nil, newDevices(opts, nil), nil).serving() }
	if serving() {
		t.Error("a new node serves before it has a prefix")
	}
	if err := writeConf(opts); err != nil {
		t.Fatal(err)
	}
	if !serving() {
		t.Error("a node that was open for pods does not serve when it starts again")
	}
}
