package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// records are the AddOn objects, with a copy in memory: nobody else writes them,
// so they are listed once and not watched.
type records struct {
	client *client
	byName map[string]*kombiv1.AddOn
}

func newRecords(c *client) *records {
	return &records{client: c, byName: make(map[string]*kombiv1.AddOn)}
}

func addOnTarget(name, subresource string) target {
	return target{gv: kombiv1.GroupVersion(), plural: "addons", name: name, subresource: subresource}
}

// load reads all AddOns. Before the first start there is no such kind, and so
// there are none.
func (r *records) load(ctx context.Context) error {
	var list kombiv1.AddOnList
	err := r.client.list(ctx, addOnTarget("", ""), "", &list)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	r.byName = make(map[string]*kombiv1.AddOn)
	for i := range list.Items {
		r.keep(&list.Items[i])
	}
	return nil
}

func (r *records) keep(a *kombiv1.AddOn) {
	a.ManagedFields = nil
	r.byName[a.Name] = a
}

func (r *records) get(name string) *kombiv1.AddOn { return r.byName[name] }

// all returns the records in the order of their names.
func (r *records) all() []*kombiv1.AddOn {
	var all []*kombiv1.AddOn
	for _, a := range r.byName {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b *kombiv1.AddOn) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// objects returns the recorded objects of every set.
func (r *records) objects() map[string][]kombiv1.AppliedObject {
	objects := make(map[string][]kombiv1.AppliedObject, len(r.byName))
	for name, a := range r.byName {
		objects[name] = a.Status.Objects
	}
	return objects
}

// put brings a record up to date, and writes nothing that is so already. change
// computes the new status from the present one and reports whether they differ;
// it may be called more than once.
func (r *records) put(ctx context.Context, name string, spec kombiv1.AddOnSpec, change func(kombiv1.AddOnStatus, int64) (kombiv1.AddOnStatus, bool)) error {
	deadline := time.Now().Add(establishingTime)
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, 200*time.Millisecond) {
		err := r.tryPut(ctx, name, spec, change)
		switch {
		case err == nil:
			return nil
		case apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err):
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
			// Somebody changed or deleted it, or the kind is not served yet.
			if err := r.refresh(ctx, name); err != nil {
				return err
			}
		default:
			return err
		}
		if time.Now().After(deadline) {
			return err
		}
		if sleep(ctx, delay) != nil {
			return err
		}
	}
}

func (r *records) refresh(ctx context.Context, name string) error {
	got := &kombiv1.AddOn{}
	err := r.client.get(ctx, addOnTarget(name, ""), got)
	switch {
	case apierrors.IsNotFound(err):
		delete(r.byName, name)
		return nil
	case err != nil:
		return err
	}
	r.keep(got)
	return nil
}

func (r *records) tryPut(ctx context.Context, name string, spec kombiv1.AddOnSpec, change func(kombiv1.AddOnStatus, int64) (kombiv1.AddOnStatus, bool)) error {
	present := r.byName[name]
	switch {
	case present == nil:
		made := &kombiv1.AddOn{
			TypeMeta:   metav1.TypeMeta{APIVersion: kombiv1.GroupVersion().String(), Kind: "AddOn"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       spec,
		}
		out := &kombiv1.AddOn{}
		if err := r.client.create(ctx, addOnTarget("", ""), made, out); err != nil {
			return err
		}
		r.keep(out)
		present = out
	case !equality.Semantic.DeepEqual(present.Spec, spec):
		next := present.DeepCopy()
		next.Spec = spec
		out := &kombiv1.AddOn{}
		if err := r.client.update(ctx, addOnTarget(name, ""), next, out); err != nil {
			return err
		}
		r.keep(out)
		present = out
	}
	status, changed := change(present.Status, present.Generation)
	if !changed {
		return nil
	}
	next := present.DeepCopy()
	next.Status = status
	out := &kombiv1.AddOn{}
	if err := r.client.update(ctx, addOnTarget(name, "status"), next, out); err != nil {
		return err
	}
	r.keep(out)
	return nil
}

// remove deletes a record.
func (r *records) remove(ctx context.Context, name string) error {
	err := r.client.delete(ctx, addOnTarget(name, ""), "")
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	delete(r.byName, name)
	return nil
}

// event sends one Event about an AddOn. Events are sent when something changes
// and never again for the same, so nothing is aggregated.
func (d *Deployer) event(ctx context.Context, about *kombiv1.AddOn, kind, reason, message string) {
	const maxNote = 1000 // the API allows 1024 bytes
	if len(message) > maxNote {
		message = strings.ToValidUTF8(message[:maxNote], "") + " …"
	}
	now := metav1.Now()
	host := d.opts.Server
	if host == "" {
		host, _ = os.Hostname()
	}
	event := &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		// Events about cluster-scoped objects live in the namespace "default".
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: kombiv1.GroupVersion().String(), Kind: "AddOn", Name: about.Name,
			UID: about.UID, ResourceVersion: about.ResourceVersion,
		},
		Reason: reason, Message: message, Type: kind,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source:              corev1.EventSource{Component: FieldManager, Host: host},
		ReportingController: FieldManager, ReportingInstance: host,
	}
	at := target{gv: schema.GroupVersion{Version: "v1"}, plural: "events", namespace: metav1.NamespaceDefault}
	if err := d.client.create(ctx, at, event, nil); err != nil {
		d.opts.Log.Debug("an Event cannot be sent", "addon", about.Name, "error", err)
	}
}

func isKindMissing(err error) bool { return errors.Is(err, errKindMissing) }
