package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// finish deletes what left the sets and records the outcomes. all are the plans
// of every set, also of those that were not due; seen is the state of the files
// that the plans were made from.
func (d *Deployer) finish(ctx context.Context, outcomes []*outcome, all []*planned, seen int64) {
	owned := ownedKeys(all)
	for _, o := range outcomes {
		if ctx.Err() != nil {
			return // the next start finds out what was done and what was not
		}
		// A file that is being written looks like one from which documents were
		// removed. The next pass, which is due already, knows better.
		stale := !o.bundled() && d.changes.Load() != seen
		recorded := d.records.get(o.name)
		if recorded != nil {
			d.retire(ctx, o, recorded.Status.Objects, owned, stale)
		}
		if o.disabled {
			d.finishDisabled(ctx, o)
			continue
		}
		ok := d.record(ctx, o, o.checksum)
		d.settle(o, stale || !ok)
	}
}

// ownedKeys are the objects that some set wants to exist.
func ownedKeys(plans []*planned) map[objectKey]bool {
	owned := make(map[objectKey]bool)
	for _, p := range plans {
		for _, doc := range p.apply {
			for _, key := range doc.key().variants() {
				owned[key] = true
			}
		}
		for key := range p.keep {
			owned[key] = true
		}
	}
	return owned
}

// retire sorts the recorded objects that were not applied just now into those
// that stay, those that another set has taken over, and those to delete.
func (d *Deployer) retire(ctx context.Context, o *outcome, recorded []kombiv1.AppliedObject, owned map[objectKey]bool, stale bool) {
	mine := ownedKeys([]*planned{o.planned})
	have := make(map[objectKey]bool)
	for _, object := range o.applied {
		have[keyOf(object)] = true
	}
	var gone []kombiv1.AppliedObject
	for _, object := range recorded {
		key := keyOf(object)
		switch {
		case have[key]:
		case mine[key], stale:
			if object.UID != "" || o.unsure {
				o.remain = append(o.remain, object)
			}
		case owned[key]:
		default:
			gone = append(gone, object)
		}
	}
	d.prune(ctx, o, gone)
}

// prune deletes objects, those first that depend on the others.
func (d *Deployer) prune(ctx context.Context, o *outcome, gone []kombiv1.AppliedObject) {
	var byPhase [phases][]kombiv1.AppliedObject
	for _, object := range gone {
		ph := phaseOf(object.Group, object.Kind)
		byPhase[ph] = append(byPhase[ph], object)
	}
	var mu sync.Mutex
	for _, objects := range slices.Backward(byPhase[:]) {
		inParallel(objects, func(object kombiv1.AppliedObject) {
			deleted, err := d.deleteObject(ctx, o.name, object)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				o.unpruned = append(o.unpruned, problem{kombiv1.ReasonPruneFailed, fmt.Sprintf("%s left the set and cannot be deleted: %s; it is tried again", keyOf(object), oneLine(err))})
				o.remain = append(o.remain, object)
				return
			}
			if deleted {
				o.pruned = append(o.pruned, keyOf(object))
			}
		})
	}
}

// deleteObject deletes an object that a set made, and reports whether it did. An
// object of the same name that somebody else made since is not touched.
func (d *Deployer) deleteObject(ctx context.Context, addOn string, object kombiv1.AppliedObject) (bool, error) {
	gvk := schema.GroupVersionKind{Group: object.Group, Version: object.Version, Kind: object.Kind}
	m, err := d.mapper.lookup(ctx, gvk)
	switch {
	case isKindMissing(err):
		return false, nil // and its objects went with it
	case err != nil:
		return false, err
	}
	at := target{gv: gvk.GroupVersion(), plural: m.plural, namespace: object.Namespace, name: object.Name}
	uid := object.UID
	if uid == "" {
		got, err := d.client.metadata(ctx, at)
		switch {
		case apierrors.IsNotFound(err):
			return false, nil
		case err != nil:
			return false, err
		case got.Labels[LabelAddOn] != addOn:
			return false, nil
		}
		uid = got.UID
	}
	err = d.client.delete(ctx, at, uid)
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsConflict(err):
		d.opts.Log.Info("an object that left its set is kept, because it is not the one that Kombi made", "addon", addOn, "object", keyOf(object).String())
		return false, nil
	}
	return false, err
}

// finishDisabled removes the rest of a disabled set: objects that were made but
// not recorded, and the record.
func (d *Deployer) finishDisabled(ctx context.Context, o *outcome) {
	record := d.records.get(o.name)
	if record == nil {
		var left []kombiv1.AppliedObject
		for _, doc := range o.documents {
			gvk, key := doc.gvk(), doc.key()
			left = append(left, kombiv1.AppliedObject{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Namespace: key.namespace, Name: key.name})
		}
		d.prune(ctx, o, left)
		if len(o.pruned) > 0 {
			d.opts.Log.Info("manifests removed", "addon", o.name, "objects", len(o.pruned), "because", "the set is disabled")
		}
		d.settle(o, false)
		return
	}
	if len(o.unpruned) > 0 {
		d.record(ctx, o, o.checksum)
		d.settle(o, false)
		return
	}
	if err := d.records.remove(ctx, o.name); err != nil {
		d.opts.Log.Warn("the AddOn of a disabled set cannot be deleted; trying again", "addon", o.name, "error", err)
		d.settle(o, true)
		return
	}
	d.opts.Log.Info("manifests removed", "addon", o.name, "objects", len(o.pruned), "because", "the set is disabled")
	d.settle(o, false)
}

// intend records which objects a user's set is about to make, so that they are
// found again if the process is killed before the outcome is recorded. Bundled
// sets need no such care: the next start applies them again.
func (d *Deployer) intend(ctx context.Context, p *planned) {
	var known []kombiv1.AppliedObject
	if record := d.records.get(p.name); record != nil {
		known = record.Status.Objects
	}
	objects := slices.Clone(known)
	for _, doc := range p.apply {
		key := doc.key()
		if slices.ContainsFunc(known, func(o kombiv1.AppliedObject) bool { return slices.Contains(key.variants(), keyOf(o)) }) {
			continue
		}
		// Without knowing the kind's scope, the namespace is not known either;
		// such an object cannot be made before the next pass anyway.
		gvk := doc.gvk()
		m, err := d.mapper.lookup(ctx, gvk)
		if err != nil {
			continue
		}
		object := sanitized(doc.object, m, p.name)
		objects = append(objects, kombiv1.AppliedObject{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Namespace: object.GetNamespace(), Name: key.name})
	}
	if len(objects) == len(known) {
		return
	}
	err := d.records.put(ctx, p.name, d.spec(p, p.checksum), func(status kombiv1.AddOnStatus, generation int64) (kombiv1.AddOnStatus, bool) {
		status.Objects, status.ObjectCount = objects, int32(len(objects))
		if len(status.Conditions) == 0 {
			status.Conditions = []metav1.Condition{{
				Type: kombiv1.ConditionReady, Status: metav1.ConditionFalse, Reason: kombiv1.ReasonProgressing,
				Message: "The set is being applied.", LastTransitionTime: metav1.Now(), ObservedGeneration: generation,
			}}
		}
		return status, true
	})
	if err != nil && ctx.Err() == nil {
		d.opts.Log.Warn("what a set is about to make cannot be recorded; going on", "addon", p.name, "error", err)
	}
}

func (d *Deployer) spec(p *planned, checksum string) kombiv1.AddOnSpec {
	spec := kombiv1.AddOnSpec{Source: p.source, Path: p.path, Checksum: checksum}
	if !p.bundled() {
		spec.Server = d.opts.Server
	}
	return spec
}

// record writes the outcome to the set's AddOn, tells the log and sends an Event,
// all only if it is new. It reports whether the record is up to date.
func (d *Deployer) record(ctx context.Context, o *outcome, checksum string) bool {
	var before, after kombiv1.AddOnStatus
	changed := false
	err := d.records.put(ctx, o.name, d.spec(o.planned, checksum), func(status kombiv1.AddOnStatus, generation int64) (kombiv1.AddOnStatus, bool) {
		before = status
		after, changed = o.status(status, generation, metav1.Now())
		return after, changed
	})
	if err != nil && ctx.Err() != nil {
		return false
	}
	if err != nil {
		d.opts.Log.Warn("the outcome of a set cannot be recorded; trying again", "addon", o.name, "error", err)
		return false
	}
	if !changed {
		return true
	}
	d.logOutcome(o)
	if record := d.records.get(o.name); record != nil && (differs(before, after) || len(o.pruned) > 0) {
		d.tell(ctx, record, o)
	}
	return true
}

// differs compares what the conditions say, times and generations aside.
func differs(a, b kombiv1.AddOnStatus) bool {
	return !slices.EqualFunc(a.Conditions, b.Conditions, func(x, y metav1.Condition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message
	})
}

// tell sends the Events of an outcome.
func (d *Deployer) tell(ctx context.Context, record *kombiv1.AddOn, o *outcome) {
	for _, c := range o.conditions() {
		switch {
		case c.Type == kombiv1.ConditionReady && c.Status != metav1.ConditionFalse:
			d.event(ctx, record, "Normal", c.Reason, c.Message)
		case c.Type == kombiv1.ConditionDegraded && c.Status == metav1.ConditionTrue:
			d.event(ctx, record, "Warning", c.Reason, c.Message)
		}
	}
	if len(o.pruned) > 0 {
		var names []string
		for _, key := range o.pruned {
			names = append(names, key.String())
		}
		slices.Sort(names)
		d.event(ctx, record, "Normal", "Pruned", clip(fmt.Sprintf("%s left the set and were deleted: %s.", count(len(names), "object"), strings.Join(names, ", "))))
	}
}
