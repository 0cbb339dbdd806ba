package component

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Graph is a set of components bound together by their needs.
type Graph struct {
	log   *slog.Logger
	nodes []*node

	mu       sync.Mutex
	began    time.Time
	allReady chan struct{}
	missing  int
}

type node struct {
	component Component
	needs     []*node
	ready     chan struct{}
	ended     chan struct{}
	record    Record // guarded by Graph.mu
}

// Back-off between restarts of a restartable component.
const (
	backoffFirst = 500 * time.Millisecond
	backoffMost  = 30 * time.Second
)

// NewGraph checks that names are unique, that every need exists and that the
// needs hold no cycle, and returns the graph.
func NewGraph(log *slog.Logger, components ...Component) (*Graph, error) {
	g := &Graph{log: log, allReady: make(chan struct{}), missing: len(components)}
	byName := make(map[string]*node, len(components))
	for _, c := range components {
		if byName[c.Name()] != nil {
			return nil, fmt.Errorf("two components are named %q", c.Name())
		}
		n := &node{
			component: c,
			ready:     make(chan struct{}),
			ended:     make(chan struct{}),
			record:    Record{Name: c.Name(), State: Waiting},
		}
		byName[c.Name()] = n
		g.nodes = append(g.nodes, n)
	}
	for _, n := range g.nodes {
		for _, need := range n.component.Needs() {
			on := byName[need]
			if on == nil {
				return nil, fmt.Errorf("component %q needs %q, which is not there", n.component.Name(), need)
			}
			n.needs = append(n.needs, on)
		}
	}
	return g, g.checkCycles()
}

func (g *Graph) checkCycles() error {
	const visiting, done = 1, 2
	marks := make(map[*node]int, len(g.nodes))
	var visit func(n *node, path []string) error
	visit = func(n *node, path []string) error {
		path = append(path, n.component.Name())
		switch marks[n] {
		case visiting:
			return fmt.Errorf("components need each other in a circle: %s", strings.Join(path, " → "))
		case done:
			return nil
		}
		marks[n] = visiting
		for _, need := range n.needs {
			if err := visit(need, path); err != nil {
				return err
			}
		}
		marks[n] = done
		return nil
	}
	for _, n := range g.nodes {
		if err := visit(n, nil); err != nil {
			return err
		}
	}
	return nil
}

// Ready is closed when every component has become ready once.
func (g *Graph) Ready() <-chan struct{} { return g.allReady }

// Run starts every component as soon as its needs are ready and blocks until
// ctx is done or a component that cannot be restarted has failed; its error is
// returned. Components end in the reverse order of their needs: what others
// need lives until they are gone.
func (g *Graph) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	g.mu.Lock()
	g.began = time.Now()
	g.mu.Unlock()
	if len(g.nodes) == 0 {
		close(g.allReady)
	}

	dependants := make(map[*node][]*node)
	for _, n := range g.nodes {
		for _, need := range n.needs {
			dependants[need] = append(dependants[need], n)
		}
	}
	for _, n := range g.nodes {
		go func() {
			defer close(n.ended)
			// The component's own context ends once everyone who needs it has ended.
			own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
			go func() {
				<-ctx.Done()
				for _, d := range dependants[n] {
					<-d.ended
				}
				cancel(context.Cause(ctx))
			}()
			if err := g.supervise(ctx, own, n); err != nil {
				fail(err)
			}
		}()
	}
	<-ctx.Done()
	for _, n := range g.nodes {
		<-n.ended
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// supervise waits for the needs of n and keeps it running. ctx ends the wait
// and the restarts, own ends the component itself.
func (g *Graph) supervise(ctx, own context.Context, n *node) error {
	name := n.component.Name()
	waitedFor := ""
	for _, need := range n.needs {
		select {
		case <-need.ready:
			continue
		default:
		}
		waitedFor = need.component.Name()
		select {
		case <-need.ready:
		case <-ctx.Done():
			return nil
		}
	}
	backoff := backoffFirst
	for {
		started := time.Now()
		g.mu.Lock()
		n.record.State = Starting
		if n.record.Restarts == 0 {
			n.record.WaitedFor = waitedFor
			n.record.Began = started.Sub(g.began)
		}
		g.mu.Unlock()

		err := runGuarded(own, n.component, func() { g.markReady(n, started) })
		if ctx.Err() != nil {
			g.setState(n, Ended, nil)
			return nil
		}
		if err == nil {
			err = errors.New("it ended without a reason")
		}
		err = fmt.Errorf("component %s: %w", name, err)
		if r, ok := n.component.(Restartable); !ok || !r.Restartable() {
			g.setState(n, Ended, err)
			return err
		}
		if time.Since(started) > backoffMost {
			backoff = backoffFirst
		}
		g.log.Error("component failed and will be started again", "component", name, "error", err, "in", backoff)
		g.setState(n, Ended, err)
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return nil
		}
		backoff = min(backoff*2, backoffMost)
		g.mu.Lock()
		n.record.Restarts++
		g.mu.Unlock()
	}
}

// runGuarded turns a panic of the component into an error, so that no stack
// trace reaches a user as the only explanation.
func runGuarded(ctx context.Context, c Component, ready func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Debug("panic", "component", c.Name(), "stack", string(debug.Stack()))
			err = fmt.Errorf("internal fault: %v (run with --log-level debug for the stack, and report it)", p)
		}
	}()
	return c.Run(ctx, ready)
}

func (g *Graph) markReady(n *node, started time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n.record.State = Ready
	n.record.Problem = ""
	select {
	case <-n.ready:
		return // ready again after a restart
	default:
	}
	n.record.Took = time.Since(started)
	close(n.ready)
	g.log.Debug("component ready", "component", n.record.Name, "began", n.record.Began, "took", n.record.Took)
	if g.missing--; g.missing == 0 {
		close(g.allReady)
	}
}

func (g *Graph) setState(n *node, s State, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n.record.State = s
	if err != nil {
		n.record.Problem = err.Error()
	}
}

// Healthy returns nil when every component is ready and healthy, or the first
// problem in the order of start.
func (g *Graph) Healthy() error {
	for _, r := range g.Records() {
		switch {
		case r.Problem != "":
			return errors.New(r.Problem)
		case r.State != Ready:
			return fmt.Errorf("component %s is %s", r.Name, r.State)
		}
	}
	return nil
}

// Running lists the components that have started and not ended.
func (g *Graph) Running() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []string
	for _, n := range g.nodes {
		if n.record.State == Starting || n.record.State == Ready {
			names = append(names, n.record.Name)
		}
	}
	return names
}

// Alive reports whether every component has started and none has ended: what a
// watchdog may ask. An unhealthy but running component is alive.
func (g *Graph) Alive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.nodes {
		if n.record.State == Ended || n.record.State == Waiting {
			return false
		}
	}
	return true
}
