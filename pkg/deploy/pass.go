package deploy

import (
	"context"
	"log/slog"
	"time"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// Back-off for sets that could not be applied. They are cheap to try again, and
// often wait for a kind or a webhook that comes with something else.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
	idle       = 24 * time.Hour // nothing to do until a file changes
)

// pass reads all manifests, applies the sets that changed or whose retry is due,
// removes what left them, and returns how long to wait for the next retry.
func (d *Deployer) pass(ctx context.Context, watch *folderWatch) time.Duration {
	seen := d.changes.Load()
	plans, unknown, err := d.plan(watch)
	if err != nil {
		d.setTrouble(err)
		d.opts.Log.Error("the manifests cannot be applied", "error", err)
		return retryMost
	}
	now := time.Now()
	var due, waiting []*planned
	for _, p := range plans {
		s := d.states[p.name]
		if s == nil {
			s = &state{}
			d.states[p.name] = s
		}
		if s.checksum != p.checksum {
			*s = state{checksum: p.checksum}
		}
		if !s.settled && !now.Before(s.retry) {
			due = append(due, p)
		} else if !s.settled {
			waiting = append(waiting, p)
		}
	}
	if bringsKinds(due) {
		due = append(due, waiting...) // which may be what they wait for
	}
	d.finish(ctx, d.apply(ctx, due), plans, seen)
	if ctx.Err() != nil {
		return idle
	}
	if !unknown {
		d.removeGone(ctx, plans, seen)
	}
	d.mapper.forget()
	d.setTrouble(d.bundledTrouble(plans))
	if unknown {
		// The folder may come back, and there is nothing to watch until then.
		return min(5*time.Second, d.nextRetry())
	}
	return d.nextRetry()
}

// bringsKinds reports whether the sets have kinds or namespaces, on which other
// sets may depend.
func bringsKinds(plans []*planned) bool {
	for _, p := range plans {
		for _, doc := range p.apply {
			if gvk := doc.gvk(); phaseOf(gvk.Group, gvk.Kind) <= phaseDefinitions {
				return true
			}
		}
	}
	return false
}

// settle notes the result of an attempt and when to make the next.
func (d *Deployer) settle(o *outcome, stale bool) {
	s := d.states[o.name]
	if s == nil || s.checksum != o.checksum {
		s = &state{checksum: o.checksum}
		d.states[o.name] = s
	}
	if !o.retriable() && !stale {
		*s = state{checksum: o.checksum, settled: true}
		return
	}
	delay := retryMost
	if s.attempts < 6 {
		delay = retryFirst << s.attempts
	}
	s.attempts++
	s.settled = false
	s.retry = time.Now().Add(min(delay, retryMost))
}

func (d *Deployer) nextRetry() time.Duration {
	wait := idle
	for _, s := range d.states {
		if !s.settled {
			wait = min(wait, max(time.Until(s.retry), 10*time.Millisecond))
		}
	}
	return wait
}

// removeGone deletes the objects and the records of the sets that are no more.
func (d *Deployer) removeGone(ctx context.Context, plans []*planned, seen int64) {
	present := make(map[string]bool)
	owned := ownedKeys(plans)
	for _, p := range plans {
		present[p.name] = true
	}
	for name := range d.states {
		if !present[name] && d.records.get(name) == nil {
			delete(d.states, name)
		}
	}
	for _, record := range d.records.all() {
		name := record.Name
		if present[name] || record.Spec.Source == kombiv1.SourceUser && record.Spec.Server != d.opts.Server && record.Spec.Server != "" {
			continue
		}
		s := d.states[name]
		if s == nil || s.checksum != "" {
			s = &state{}
			d.states[name] = s
		}
		if time.Now().Before(s.retry) || d.changes.Load() != seen {
			continue
		}
		o := &outcome{planned: &planned{set: newSet(name, record.Spec.Source, record.Spec.Path)}}
		d.retire(ctx, o, record.Status.Objects, owned, false)
		if len(o.unpruned) > 0 {
			d.settle(o, false)
			d.states[name].checksum = ""
			d.record(ctx, o, record.Spec.Checksum)
			continue
		}
		if err := d.records.remove(ctx, name); err != nil {
			d.opts.Log.Warn("the AddOn of a set that is gone cannot be deleted; trying again", "addon", name, "error", err)
			d.settle(&outcome{planned: o.planned, unpruned: []problem{{}}}, false)
			d.states[name].checksum = ""
			continue
		}
		delete(d.states, name)
		d.opts.Log.Info("manifests removed", "addon", name, "objects", len(o.pruned))
	}
}

// bundledTrouble is the first bundled set that is not applied, as an error.
func (d *Deployer) bundledTrouble(plans []*planned) error {
	for _, p := range onlyBundled(plans) {
		record := d.records.get(p.name)
		if p.disabled || record == nil || isApplied(record) {
			continue
		}
		for _, c := range record.Status.Conditions {
			if c.Type == kombiv1.ConditionReady {
				return &setError{name: p.name, message: c.Message}
			}
		}
	}
	return nil
}

// setError is why a bundled set is not applied.
type setError struct{ name, message string }

func (e *setError) Error() string {
	return "the bundled set " + e.name + " is not applied: " + e.message
}

func (d *Deployer) logOutcome(o *outcome) {
	troubles := o.troubles()
	level, message := slog.LevelInfo, "manifests applied"
	if len(troubles) > 0 {
		level, message = slog.LevelWarn, "manifests applied in part"
	}
	if o.frozen != "" {
		message = "manifests left alone"
	}
	args := []any{"addon", o.name, "objects", len(o.applied)}
	if len(o.pruned) > 0 {
		args = append(args, "deleted", len(o.pruned))
	}
	if o.frozen != "" {
		args = append(args, "because", o.frozen)
	}
	d.opts.Log.Log(context.Background(), level, message, args...)
	for i, t := range troubles {
		if i == 20 {
			d.opts.Log.Warn("more problems are not shown", "addon", o.name, "count", len(troubles)-i)
			break
		}
		d.opts.Log.Warn(sentence(t.text), "addon", o.name)
	}
}
