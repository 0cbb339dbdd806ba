package component

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

// part is a component whose life the test steers.
type part struct {
	name      string
	needs     []string
	run       func(ctx context.Context, ready func()) error
	restarts  bool
	unhealthy error
}

func (p *part) Name() string      { return p.name }
func (p *part) Needs() []string   { return p.needs }
func (p *part) Restartable() bool { return p.restarts }
func (p *part) Healthy() error    { return p.unhealthy }
func (p *part) Run(ctx context.Context, ready func()) error {
	if p.run != nil {
		return p.run(ctx, ready)
	}
	ready()
	<-ctx.Done()
	return nil
}

func TestNewGraphRefusesBrokenNeeds(t *testing.T) {
	for name, tc := range map[string]struct {
		parts []Component
		want  string
	}{
		"unknown need": {[]Component{&part{name: "a", needs: []string{"b"}}}, `"a" needs "b"`},
		"same name":    {[]Component{&part{name: "a"}, &part{name: "a"}}, "two components"},
		"circle":       {[]Component{&part{name: "a", needs: []string{"b"}}, &part{name: "b", needs: []string{"a"}}}, "circle"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewGraph(quiet, tc.parts...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestGraphStartsInOrderOfNeedsAndEndsInReverse(t *testing.T) {
	var mu sync.Mutex
	var events []string
	note := func(s string) { mu.Lock(); events = append(events, s); mu.Unlock() }
	tracked := func(name string, needs ...string) Component {
		return &part{name: name, needs: needs, run: func(ctx context.Context, ready func()) error {
			note("+" + name)
			ready()
			<-ctx.Done()
			note("-" + name)
			return nil
		}}
	}
	g, err := NewGraph(quiet, tracked("c", "b"), tracked("b", "a"), tracked("a"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	<-g.Ready()
	if err := g.Healthy(); err != nil {
		t.Fatalf("healthy graph says %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("clean end returned %v", err)
	}
	if got, want := strings.Join(events, " "), "+a +b +c -c -b -a"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestGraphStopsWithTheReasonOfAFailedComponent(t *testing.T) {
	boom := errors.New("disk is full")
	g, err := NewGraph(quiet,
		&part{name: "db", run: func(context.Context, func()) error { return boom }},
		&part{name: "api", needs: []string{"db"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); !errors.Is(err, boom) || !strings.Contains(err.Error(), "db") {
		t.Fatalf("got %v", err)
	}
}

func TestGraphTurnsAPanicIntoAnError(t *testing.T) {
	g, err := NewGraph(quiet, &part{name: "p", run: func(context.Context, func()) error { panic("ouch") }})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "internal fault: ouch") {
		t.Fatalf("got %v", err)
	}
}

func TestGraphRestartsARestartableComponent(t *testing.T) {
	tries := 0
	g, err := NewGraph(quiet, &part{name: "p", restarts: true, run: func(ctx context.Context, ready func()) error {
		if tries++; tries == 1 {
			return errors.New("first try fails")
		}
		ready()
		<-ctx.Done()
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() { <-g.Ready(); cancel() }()
	if err := g.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if r := g.Records()[0]; r.Restarts != 1 {
		t.Fatalf("record says %d restarts, want 1", r.Restarts)
	}
}

func TestUnhealthyComponentIsReportedWithItsReason(t *testing.T) {
	g, err := NewGraph(quiet, &part{name: "p", unhealthy: errors.New("no space left")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go g.Run(ctx)
	<-g.Ready()
	if err := g.Healthy(); err == nil || err.Error() != "no space left" {
		t.Fatalf("got %v", err)
	}
}
