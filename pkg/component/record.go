package component

import (
	"slices"
	"time"
)

// State says where a component stands in its life.
type State string

// The states, in the order in which they are passed through.
const (
	Waiting  State = "waiting"
	Starting State = "starting"
	Ready    State = "ready"
	Ended    State = "ended"
)

// Record tells how one component started and how it is.
type Record struct {
	// Name of the component.
	Name string `json:"name"`
	// State is where it stands now.
	State State `json:"state"`
	// WaitedFor names the need that became ready last, the one that held this
	// component back; empty if it needed nothing.
	WaitedFor string `json:"waitedFor,omitempty"`
	// Began is when Run was called, counted from the start of the graph.
	Began time.Duration `json:"began"`
	// Took is the time from Run to ready.
	Took time.Duration `json:"took"`
	// Restarts counts how often it was started again after a failure.
	Restarts int `json:"restarts,omitempty"`
	// Problem is why it is not healthy, in one sentence; empty when it is.
	Problem string `json:"problem,omitempty"`
}

// Records returns the record of every component, the earliest start first.
func (g *Graph) Records() []Record {
	g.mu.Lock()
	out := make([]Record, 0, len(g.nodes))
	for _, n := range g.nodes {
		out = append(out, n.record)
	}
	nodes := slices.Clone(g.nodes)
	g.mu.Unlock()

	for i, n := range nodes {
		if out[i].State != Ready {
			continue
		}
		if h, ok := n.component.(HealthChecker); ok {
			if err := h.Healthy(); err != nil {
				out[i].Problem = err.Error()
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Record) int {
		if (a.State == Waiting) != (b.State == Waiting) {
			if a.State == Waiting {
				return 1
			}
			return -1
		}
		return int(a.Began - b.Began)
	})
	return out
}
