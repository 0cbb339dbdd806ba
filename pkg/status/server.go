package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kombi-k8s/kombi/pkg/component"
)

// Options configure the server of the status.
type Options struct {
	// Socket is the unix socket, mode 0600.
	Socket string
	// Version of the program.
	Version string
	// Started is when the process started.
	Started time.Time
	// NodeName is this machine's node; Kube reads it.
	NodeName string
	Kube     *rest.Config
}

// Server is the component "status".
type Server struct {
	opts  Options
	graph atomic.Pointer[component.Graph]
	ready atomic.Int64 // nanoseconds from the start to ready; 0 while not
}

// NewServer returns the component.
func NewServer(opts Options) *Server { return &Server{opts: opts} }

// Watch makes the server report on a graph. It is called once, before the graph runs.
func (s *Server) Watch(g *component.Graph) {
	s.graph.Store(g)
	go func() {
		<-g.Ready()
		s.ready.Store(int64(time.Since(s.opts.Started)))
	}()
}

// Name implements component.Component.
func (s *Server) Name() string { return "status" }

// Needs implements component.Component.
func (s *Server) Needs() []string { return nil }

// Run implements component.Component.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := os.MkdirAll(filepath.Dir(s.opts.Socket), 0o700); err != nil {
		return err
	}
	_ = os.Remove(s.opts.Socket)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.opts.Socket)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", s.opts.Socket, err)
	}
	if err := os.Chmod(s.opts.Socket, 0o600); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.report(r.Context()))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	ready()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) report(ctx context.Context) Report {
	r := Report{Version: s.opts.Version, PID: os.Getpid(), Started: s.opts.Started}
	if g := s.graph.Load(); g != nil {
		r.Components = g.Records()
	}
	if after := s.ready.Load(); after > 0 {
		r.Ready, r.ReadyAfter = true, time.Duration(after)
	}
	r.Node = s.node(ctx)
	r.findProblem()
	return r
}

func (s *Server) node(ctx context.Context) *Node {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	client, err := kubernetes.NewForConfig(s.opts.Kube)
	if err != nil {
		return nil
	}
	found, err := client.CoreV1().Nodes().Get(ctx, s.opts.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	n := &Node{Name: found.Name}
	for _, c := range found.Status.Conditions {
		n.Conditions = append(n.Conditions, Condition{Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message})
	}
	return n
}
