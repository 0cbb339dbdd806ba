// Package deploy keeps manifests applied: those that are part of the program and
// those that users put into a server's manifests folder. It owns the AddOn
// objects, which record what each set of manifests made, and touches the objects
// that the manifests name and nothing else.
//
// Two components live here. [RBAC] gives the in-process identities their rights
// and goes first, because the others can do nothing without them. [Deployer] does
// all the rest.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// Options are what a [Deployer] needs.
type Options struct {
	// Log receives one line for each change of a set.
	Log *slog.Logger
	// Kube reaches the API server, as an identity that may do whatever the
	// manifests say: see manifests/rbac/deploy.yaml.
	Kube *rest.Config
	// Bundled holds the sets that are part of the program, one in each
	// sub-folder; see the package manifests. May be nil.
	Bundled fs.FS
	// UserDir is the folder of the users' manifests, <data-dir>/manifests. It is
	// made when absent. Empty means that there is none.
	UserDir string
	// Disable names bundled sets whose objects are deleted instead of applied.
	// Names that are no bundled set are ignored.
	Disable []string
	// Vars are the values of the ${NAME} references in the bundled manifests.
	Vars map[string]string
	// Server is the name of this server, recorded in the AddOns of the users'
	// sets: a server removes the sets that were in its own folder, never those of
	// another. May be empty on a single server.
	Server string
}

// Deployer is the component "deploy".
type Deployer struct {
	opts    Options
	client  *client
	mapper  *mapper
	records *records

	// The rest belongs to the goroutine of Run.
	states  map[string]*state // by AddOn name
	told    map[string]bool   // sentences about foreign files that were logged
	started time.Time

	// changes counts the reports of the watcher, so that a pass can tell that the
	// files it has read are not the newest.
	changes atomic.Int64

	mu      sync.Mutex
	trouble error // what Healthy returns
}

// state is what the deployer remembers of a set between passes.
type state struct {
	checksum string // of the last attempt
	settled  bool   // the attempt needs no repetition
	attempts int
	retry    time.Time
}

// New returns the deployer.
func New(opts Options) *Deployer {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Deployer{opts: opts, states: make(map[string]*state), told: make(map[string]bool)}
}

// Name returns "deploy".
func (d *Deployer) Name() string { return "deploy" }

// Needs lists the API server, and the rights that make it possible to use it.
func (d *Deployer) Needs() []string { return []string{"apiserver", "rbac"} }

// Restartable says that Run may be called again: all state is in the AddOns.
func (d *Deployer) Restartable() bool { return true }

// Healthy returns nil, or why the bundled manifests are not applied.
func (d *Deployer) Healthy() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trouble
}

func (d *Deployer) setTrouble(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trouble = err
}

// readyAnyway is how long the component waits for all bundled manifests before it
// reports ready regardless. A user's admission webhook that is down must not
// keep the node, on which that webhook would run, from starting.
const readyAnyway = 5 * time.Second

// Run applies the bundled sets, calls ready, applies the users' sets, and then
// follows their files until ctx is done.
func (d *Deployer) Run(ctx context.Context, ready func()) error {
	if err := d.prepare(); err != nil {
		return err
	}
	d.started = time.Now()
	d.states = make(map[string]*state)

	watch, err := watchFolder(d.opts.UserDir, d.opts.Log, func() { d.changes.Add(1) })
	if err != nil {
		return err
	}
	defer watch.close()

	if err := d.loadRecords(ctx); err != nil {
		return stopped(ctx, err)
	}
	if err := d.first(ctx, watch, ready); err != nil {
		return stopped(ctx, err)
	}
	for {
		wait := d.pass(ctx, watch)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-watch.changed():
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (d *Deployer) prepare() error {
	if d.client != nil {
		return nil
	}
	if err := checkDisable(d.opts.Disable); err != nil {
		return err
	}
	c, err := newClient(d.opts.Kube)
	if err != nil {
		return fmt.Errorf("the manifests cannot be applied: %w", err)
	}
	d.client, d.mapper, d.records = c, newMapper(c), newRecords(c)
	return nil
}

// loadRecords reads what earlier runs applied.
func (d *Deployer) loadRecords(ctx context.Context) error {
	var last error
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, 200*time.Millisecond) {
		err := d.records.load(ctx)
		if err == nil {
			return nil
		}
		if last == nil || last.Error() != err.Error() {
			d.opts.Log.Debug("the AddOns cannot be listed yet", "error", err)
		}
		last = err
		if err := sleep(ctx, delay); err != nil {
			return errors.Join(err, last)
		}
	}
}

// first applies the bundled sets and reports ready. When an earlier run recorded
// exactly these sets as applied, it is ready at once: the next pass applies them
// again to repair what was changed since, which writes nothing if nothing was.
func (d *Deployer) first(ctx context.Context, watch *folderWatch, ready func()) error {
	seen := d.changes.Load()
	plans, _, err := d.plan(watch)
	if err != nil {
		return err
	}
	if d.upToDate(plans) {
		ready()
		return nil
	}
	deadline := time.Now().Add(readyAnyway)
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		outcomes := d.apply(ctx, onlyBundled(plans))
		failed := firstFailure(outcomes)
		if failed == "" || time.Now().After(deadline) {
			if failed != "" {
				d.opts.Log.Warn("bundled manifests are not applied; trying on", "error", failed)
			}
			ready()
			d.finish(ctx, outcomes, plans, seen)
			return nil
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}

func (d *Deployer) upToDate(plans []*planned) bool {
	for _, p := range onlyBundled(plans) {
		if p.disabled {
			continue
		}
		record := d.records.get(p.name)
		if record == nil || record.Spec.Checksum != p.checksum || !isApplied(record) {
			return false
		}
	}
	return true
}

func onlyBundled(plans []*planned) []*planned {
	var bundled []*planned
	for _, p := range plans {
		if p.bundled() {
			bundled = append(bundled, p)
		}
	}
	return bundled
}

func firstFailure(outcomes []*outcome) string {
	for _, o := range outcomes {
		if len(o.failures) > 0 {
			return o.failures[0].text
		}
	}
	return ""
}

// plan reads all sets and decides what each contributes. unknown is set when the
// user's folder could not be read, so that nothing may be concluded from the
// absence of a set.
func (d *Deployer) plan(watch *folderWatch) (plans []*planned, unknown bool, err error) {
	sets, err := loadBundled(d.opts.Bundled, d.opts.Vars, d.opts.Disable)
	if err != nil {
		return nil, false, err
	}
	if d.opts.UserDir != "" {
		found, err := scanFolder(d.opts.UserDir)
		if err != nil {
			unknown = true
			d.tellOnce(slog.LevelWarn, fmt.Sprintf("the manifests folder %s cannot be read (%s); what was applied from it stays as it is", d.opts.UserDir, cause(err)))
		} else {
			watch.follow(found.dirs)
			for _, sentence := range found.foreign {
				d.tellOnce(slog.LevelInfo, sentence)
			}
			sets = append(d.freeze(sets, found), found.sets...)
		}
	}
	if unknown {
		for _, record := range d.records.all() {
			if record.Spec.Source == kombiv1.SourceUser {
				ghost := newSet(record.Name, kombiv1.SourceUser, record.Spec.Path)
				ghost.ghost, ghost.incomplete = true, true
				sets = append(sets, ghost)
			}
		}
	}
	return plan(sets, d.records.objects()), unknown, nil
}

// freeze leaves alone the bundled sets for which the manifests folder has a
// kombi-<name>.skip.
func (d *Deployer) freeze(bundled []*set, found *folder) []*set {
	for _, s := range bundled {
		if skip, ok := found.skips[s.name]; ok && !s.disabled {
			s.frozen = skip
			s.note("frozen", skip)
		}
	}
	return bundled
}

func (d *Deployer) tellOnce(level slog.Level, sentence string) {
	if !d.told[sentence] {
		d.told[sentence] = true
		d.opts.Log.Log(context.Background(), level, sentence)
	}
}

func isApplied(record *kombiv1.AddOn) bool {
	for _, c := range record.Status.Conditions {
		if c.Type == kombiv1.ConditionReady {
			return c.Status == "True" || c.Reason == kombiv1.ReasonSkipped
		}
	}
	return false
}

// sleep waits, or returns the reason why ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// stopped turns an error into nil when it is only that ctx is done.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
