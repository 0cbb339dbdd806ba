// Package doctor says why Kombi cannot run, before it tries. Each check is a small function of typed facts that
// returns findings: one sentence with the cause, and the next action.
//
// The datastore checks its own file when it opens it, because it can fall back to a snapshot; the configuration is
// checked when it is loaded. Neither is repeated here.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/kombi-k8s/kombi/pkg/host"
)

// Severity says whether Kombi can start.
type Severity int

// A Warning is worth knowing; an Error prevents the start.
const (
	Warning Severity = iota
	Error
)

// String is "warning" or "error".
func (s Severity) String() string {
	if s == Error {
		return "error"
	}
	return "warning"
}

// Finding is one thing that is wrong.
type Finding struct {
	Check      string // name of the check, lower case
	Severity   Severity
	Sentence   string // what is wrong and why, without a full stop
	NextAction string
}

// String is "<sentence>; <next action>".
func (f Finding) String() string {
	if f.NextAction == "" {
		return f.Sentence
	}
	return f.Sentence + "; " + f.NextAction
}

// Port is a TCP port that Kombi is about to listen on.
type Port struct {
	Key     string // configuration key that moves it
	Address string // host part to bind; empty means all addresses
	Number  int
}

// Options are what the checks look at. Only DataDir is needed; zero values of the others mean the real thing.
type Options struct {
	DataDir string
	RunDir  string
	// NeedBytes must be free in DataDir; 0 means MinFree.
	NeedBytes uint64
	Ports     []Port
	// Kubeconfig is where the administrator's kubeconfig will be written; empty means no check.
	Kubeconfig string
	// Lock is the lock file of a running server; empty means no check.
	Lock string
	// ResolvConf is judged; empty means no check.
	ResolvConf string
	// BPFFS is made sure of; empty means no check.
	BPFFS string
	// PodNetworks are named in advice about firewalls.
	PodNetworks []netip.Prefix
	// Facts about the machine; nil means host.Gather.
	Facts *host.Facts
	Now   func() time.Time
	Proc  string // /proc
}

// MinFree is the least space in bytes with which a server starts: the unpacked programs are already there, and the
// datastore, its log and the kubelet's files need a few tens of MB.
const MinFree = 64 << 20

type check struct {
	name string
	run  func(context.Context, *Options) []Finding
}

func checks() []check {
	return []check{
		{"user", checkUser},
		{"kernel", checkKernel},
		{"clock", checkClock},
		{"capabilities", checkCapabilities},
		{"cgroups", checkCgroups},
		{"data-dir", checkDataDir},
		{"run-dir", checkRunDir},
		{"kubeconfig", checkKubeconfig},
		{"running", checkRunning},
		{"ports", checkPorts},
		{"bpf", checkBPF},
		{"memory", checkMemory},
		{"resolv-conf", checkResolvConf},
		{"firewall", checkFirewall},
	}
}

// Preflight runs all checks, errors first in its answer. It takes some tens of milliseconds, makes nothing that
// stays (but for the mount of the BPF file system), and never waits for the network.
func Preflight(ctx context.Context, o Options) []Finding {
	o.fill()
	var errs, warnings []Finding
	for _, c := range checks() {
		if ctx.Err() != nil {
			break
		}
		for _, f := range c.run(ctx, &o) {
			f.Check = c.name
			if f.Severity == Error {
				errs = append(errs, f)
			} else {
				warnings = append(warnings, f)
			}
		}
		if c.name == "user" && len(errs) > 0 {
			break // everything else would only complain about missing rights
		}
	}
	return append(errs, warnings...)
}

func (o *Options) fill() {
	if o.Facts == nil {
		facts := host.Gather()
		o.Facts = &facts
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.NeedBytes == 0 {
		o.NeedBytes = MinFree
	}
}

// Err joins the findings that prevent a start into one error, or returns nil.
func Err(findings []Finding) error {
	var lines []string
	for _, f := range findings {
		if f.Severity == Error {
			lines = append(lines, f.String())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines, "\n"))
}

// Print writes one line for each finding.
func Print(w io.Writer, findings []Finding) error {
	for _, f := range findings {
		if _, err := fmt.Fprintf(w, "%s: %s.\n", f.Severity, f); err != nil {
			return err
		}
	}
	return nil
}

func fail(next, sentence string, args ...any) []Finding {
	return []Finding{{Severity: Error, Sentence: fmt.Sprintf(sentence, args...), NextAction: next}}
}

func warn(next, sentence string, args ...any) []Finding {
	return []Finding{{Severity: Warning, Sentence: fmt.Sprintf(sentence, args...), NextAction: next}}
}
