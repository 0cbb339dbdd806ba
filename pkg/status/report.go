// Package status tells how a running Kombi is: over a unix socket that only
// root can open, and as text for people.
package status

import (
	"time"

	"github.com/kombi-k8s/kombi/pkg/component"
)

// Report is everything that `kombi status` prints.
type Report struct {
	// Version of the running program.
	Version string `json:"version"`
	// PID of the running process.
	PID int `json:"pid"`
	// Started is when the process started.
	Started time.Time `json:"started"`
	// Ready says whether every component became ready, ReadyAfter how long that took.
	Ready      bool          `json:"ready"`
	ReadyAfter time.Duration `json:"readyAfterNanoseconds,omitempty"`
	// Components in the order of their start.
	Components []component.Record `json:"components"`
	// Node is what the API says of this machine's node.
	Node *Node `json:"node,omitempty"`
	// Problem is the first thing that is wrong, in one sentence; empty when nothing is.
	Problem string `json:"problem,omitempty"`
}

// Node is the part of the Node object that matters for its health.
type Node struct {
	Name       string      `json:"name"`
	Conditions []Condition `json:"conditions"`
}

// Condition of the Node.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// findProblem fills in the first thing that is wrong.
func (r *Report) findProblem() {
	for _, c := range r.Components {
		if c.Problem != "" {
			r.Problem = c.Name + ": " + c.Problem
			return
		}
	}
	for _, c := range r.Components {
		if c.State != component.Ready {
			r.Problem = "component " + c.Name + " is " + string(c.State)
			if c.WaitedFor != "" && c.State == component.Waiting {
				r.Problem += " for " + c.WaitedFor
			}
			return
		}
	}
	if r.Node == nil {
		return
	}
	for _, c := range r.Node.Conditions {
		if (c.Type == "Ready") != (c.Status == "True") {
			r.Problem = "node " + r.Node.Name + " has the condition " + c.Type + "=" + c.Status + ": " + c.Message
			return
		}
	}
}
