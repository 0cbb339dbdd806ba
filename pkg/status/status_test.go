package status

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kombi-k8s/kombi/pkg/component"
)

func TestTheFirstProblemIsNamed(t *testing.T) {
	ready := component.Record{Name: "datastore", State: component.Ready}
	for name, tc := range map[string]struct {
		report Report
		want   string
	}{
		"none": {Report{Components: []component.Record{ready}}, ""},
		"a component that is ill goes before one that starts": {
			Report{Components: []component.Record{{Name: "dns", State: component.Starting}, {Name: "datastore", State: component.Ready, Problem: "no space left"}}},
			"datastore: no space left",
		},
		"a component that waits says for whom": {
			Report{Components: []component.Record{{Name: "kubelet", State: component.Waiting, WaitedFor: "apiserver"}}},
			"component kubelet is waiting for apiserver",
		},
		"a condition of the node": {
			Report{Components: []component.Record{ready}, Node: &Node{Name: "n1", Conditions: []Condition{
				{Type: "MemoryPressure", Status: "False"}, {Type: "Ready", Status: "False", Message: "no network"},
			}}},
			"node n1 has the condition Ready=False: no network",
		},
		"pressure": {
			Report{Node: &Node{Name: "n1", Conditions: []Condition{{Type: "DiskPressure", Status: "True", Message: "disk is full"}}}},
			"node n1 has the condition DiskPressure=True: disk is full",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.report.findProblem()
			if tc.report.Problem != tc.want {
				t.Fatalf("got %q, want %q", tc.report.Problem, tc.want)
			}
		})
	}
}

func TestStatusOfARunningGraph(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "kombi.sock")
	if _, err := Get(t.Context(), socket); !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "kombi server") {
		t.Fatalf("with nobody there it says %v", err)
	}
	s := NewServer(Options{Socket: socket, Version: "v1", Started: time.Now(), NodeName: "n1", Kube: &rest.Config{Host: "https://127.0.0.1:1"}})
	g, err := component.NewGraph(slog.New(slog.DiscardHandler), s)
	if err != nil {
		t.Fatal(err)
	}
	s.Watch(g)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	<-g.Ready()
	var report *Report
	for deadline := time.Now().Add(10 * time.Second); ; {
		if report, err = Get(ctx, socket); err == nil && report.Ready {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %v %v", report, err)
		}
	}
	var text bytes.Buffer
	if err := Print(&text, report); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Kombi v1", "ready after", "COMPONENT", "status", "No problem found."} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, text.String())
		}
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v %v", info, err)
	}
}
