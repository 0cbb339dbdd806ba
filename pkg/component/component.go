// Package component starts the parts of Kombi in the order of their needs,
// watches over them, and records how long each start took. It knows nothing of
// Kubernetes.
package component

import "context"

// Component is one part of Kombi with a life of its own.
//
//	          needs ready          ready() called          ctx done or error
//	waiting ───────────────▶ starting ───────────▶ running ─────────────────▶ ended
//	                             ▲                                              │
//	                             └────────── back-off, if restartable ──────────┘
type Component interface {
	// Name identifies the component among its peers; lower case.
	Name() string

	// Needs lists the names of the components that have to be ready before Run
	// is called. Names that are not part of the graph are a mistake that
	// [NewGraph] reports.
	Needs() []string

	// Run does the work and blocks until ctx is done, then returns nil, or until
	// the component fails. It calls ready exactly once, as soon as those who
	// need it may use it. After an error Run may be called again with the same
	// receiver when the component is [Restartable].
	Run(ctx context.Context, ready func()) error
}

// Restartable is implemented by components whose Run may be repeated after a
// failure. A component without it takes the whole process down with its reason.
type Restartable interface {
	Restartable() bool
}

// HealthChecker is implemented by components that can tell whether they still
// do their work. Healthy returns nil or the reason, in one sentence. It must
// answer within a second and be safe for concurrent use.
type HealthChecker interface {
	Healthy() error
}

// Func adapts a plain function to a [Component].
type Func struct {
	// ID is the component's name.
	ID string
	// After lists what it needs.
	After []string
	// Do is its Run.
	Do func(ctx context.Context, ready func()) error
}

// Name implements [Component].
func (f Func) Name() string { return f.ID }

// Needs implements [Component].
func (f Func) Needs() []string { return f.After }

// Run implements [Component].
func (f Func) Run(ctx context.Context, ready func()) error { return f.Do(ctx, ready) }
