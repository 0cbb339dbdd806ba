package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

const (
	// LabelAddOn is the label of every applied object; its value is the name of
	// the AddOn that the object belongs to.
	LabelAddOn = "kombi.dev/addon"
	// AnnotationForce on an object of a user's set takes over, if it is "true",
	// fields that another manager owns.
	AnnotationForce = "kombi.dev/force"
	// AnnotationRecreate allows an object, if it is "true", to be deleted and made
	// again when a field that cannot be changed has changed.
	AnnotationRecreate = "kombi.dev/recreate"

	parallel         = 8                // requests at a time
	patience         = 3 * time.Second  // for what is a matter of moments
	establishingTime = 10 * time.Second // for a CRD
)

// task is one document to apply.
type task struct {
	outcome  *outcome
	document document
	result   *kombiv1.AppliedObject
	problem  *problem
	unsure   bool // whether the object was made
}

// apply applies the documents of all plans, phase by phase: a set may use the
// namespace or the kind that another set defines, whatever their names.
func (d *Deployer) apply(ctx context.Context, plans []*planned) []*outcome {
	var (
		outcomes []*outcome
		byPhase  [phases][]*task
		needed   = make(map[schema.GroupKind]bool)
	)
	var all []*task // in the order of the documents
	for _, p := range plans {
		o := &outcome{planned: p}
		outcomes = append(outcomes, o)
		if !p.bundled() && len(p.apply) > 0 {
			d.intend(ctx, p)
		}
		for _, doc := range p.apply {
			gvk := doc.gvk()
			needed[gvk.GroupKind()] = true
			ph := phaseOf(gvk.Group, gvk.Kind)
			t := &task{outcome: o, document: doc}
			all = append(all, t)
			byPhase[ph] = append(byPhase[ph], t)
		}
	}
	fresh := make(map[schema.GroupKind]bool) // kinds defined in this pass
	if !defineNeeded(byPhase[phaseDefinitions], needed) {
		// Nothing waits for these, so they need not go first.
		byPhase[phaseSettings] = append(byPhase[phaseSettings], byPhase[phaseDefinitions]...)
		byPhase[phaseDefinitions] = nil
	}
	for ph, tasks := range byPhase {
		if ctx.Err() != nil {
			break
		}
		inParallel(tasks, func(t *task) { t.result, t.problem = d.applyOne(ctx, t, fresh) })
		if phase(ph) == phaseDefinitions {
			d.awaitDefinitions(ctx, tasks, needed, fresh)
		}
	}
	for _, t := range all {
		switch {
		case t.problem != nil:
			t.outcome.failures = append(t.outcome.failures, *t.problem)
			t.outcome.unsure = t.outcome.unsure || t.unsure
		case t.result != nil:
			t.outcome.applied = append(t.outcome.applied, *t.result)
		}
	}
	return outcomes
}

// defineNeeded reports whether one of the definitions is of a needed kind.
func defineNeeded(definitions []*task, needed map[schema.GroupKind]bool) bool {
	for _, t := range definitions {
		for gvk := range definedKinds(t.document.object) {
			if needed[gvk.GroupKind()] {
				return true
			}
		}
	}
	return false
}

// inParallel runs f for all items, a few at a time, in their order.
func inParallel[T any](items []T, f func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for _, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(item)
		})
	}
	wg.Wait()
}

// applyOne applies one document. Refusals that pass within moments, such as those
// while the API server is starting, are waited out.
func (d *Deployer) applyOne(ctx context.Context, t *task, fresh map[schema.GroupKind]bool) (*kombiv1.AppliedObject, *problem) {
	doc := t.document
	gvk := doc.gvk()
	deadline := time.Now().Add(patience)
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, 300*time.Millisecond) {
		result, err := d.try(ctx, t)
		if err == nil {
			return result, nil
		}
		passing := d.isPassing(err) || fresh[gvk.GroupKind()] && apierrors.IsNotFound(err)
		if !passing || time.Now().After(deadline) || sleep(ctx, delay) != nil {
			t.unsure = apierrors.ReasonForError(err) == "" && !errors.Is(err, errKindMissing)
			return nil, explain(doc, err)
		}
	}
}

// isPassing recognizes errors that go away by themselves within seconds.
func (d *Deployer) isPassing(err error) bool {
	switch {
	case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsServiceUnavailable(err):
		return true
	case apierrors.IsForbidden(err):
		// The API server's view of the roles lags behind its start.
		return time.Since(d.started) < patience && !isAdmission(err)
	case apierrors.IsNotFound(err):
		// kube-system is made by the API server itself, moments after its start.
		return time.Since(d.started) < patience && missingNamespace(err)
	case apierrors.ReasonForError(err) == "":
		return !errors.Is(err, errKindMissing) && time.Since(d.started) < patience // the connection
	}
	return false
}

func (d *Deployer) try(ctx context.Context, t *task) (*kombiv1.AppliedObject, error) {
	doc, gvk := t.document, t.document.gvk()
	m, err := d.mapper.lookup(ctx, gvk)
	if err != nil {
		return nil, err
	}
	object := sanitized(doc.object, m, t.outcome.name)
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	at := target{gv: gvk.GroupVersion(), plural: m.plural, namespace: object.GetNamespace(), name: object.GetName()}
	force := t.outcome.bundled() || object.GetAnnotations()[AnnotationForce] == "true"
	got, err := d.client.apply(ctx, at, body, force)
	if apierrors.IsInvalid(err) && object.GetAnnotations()[AnnotationRecreate] == "true" {
		got, err = d.recreate(ctx, at, object, body, err)
	}
	if apierrors.IsNotFound(err) {
		d.mapper.unlearn(gvk) // the kind may be gone, or be served under another name
	}
	if err != nil {
		return nil, err
	}
	return &kombiv1.AppliedObject{
		Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind,
		Namespace: at.namespace, Name: at.name, UID: got.UID,
	}, nil
}

// sanitized returns a copy of the object as it is sent: with its label and
// namespace, without what only the server may set. Manifests that were exported
// from a cluster carry such fields.
func sanitized(in *unstructured.Unstructured, m mapping, addOn string) *unstructured.Unstructured {
	object := in.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink", "deletionTimestamp"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	switch {
	case !m.namespaced:
		object.SetNamespace("")
	case object.GetNamespace() == "":
		object.SetNamespace("default")
	}
	labels := object.GetLabels()
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[LabelAddOn] = addOn
	object.SetLabels(labels)
	return object
}

// recreate deletes and makes an object whose change was refused with cause. It
// first asks whether a new object would be accepted, and otherwise returns the
// refusal: a mistake in a manifest must not cost the object.
func (d *Deployer) recreate(ctx context.Context, at target, object *unstructured.Unstructured, body []byte, cause error) (*applied, error) {
	probe := object.DeepCopy()
	probe.SetName(clipName(object.GetName()) + "-kombi-probe")
	probeBody, err := json.Marshal(probe)
	if err != nil {
		return nil, err
	}
	probeAt := at
	probeAt.name = probe.GetName()
	r := d.client.request(http.MethodPatch, probeAt).
		SetHeader("Content-Type", applyPatch).
		Param("fieldManager", FieldManager).Param("force", "true").Param("dryRun", "All").Body(probeBody)
	if into(ctx, r, nil) != nil {
		return nil, cause
	}
	old, err := d.client.metadata(ctx, at)
	if err != nil {
		return nil, cause
	}
	if err := d.client.delete(ctx, at, old.UID); err != nil && !apierrors.IsNotFound(err) {
		return nil, cause
	}
	deadline := time.Now().Add(patience)
	for {
		now, err := d.client.metadata(ctx, at)
		if apierrors.IsNotFound(err) || err == nil && now.UID != old.UID {
			return d.client.apply(ctx, at, body, true)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("it has to be made again because of a field that cannot be changed, and its deletion takes longer than %s; it is tried again: %w", patience, cause)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func clipName(name string) string { return name[:min(len(name), 40)] }

// awaitDefinitions waits until the API server serves those of the new CRDs whose
// kinds are needed in this pass. The others take their time meanwhile.
func (d *Deployer) awaitDefinitions(ctx context.Context, tasks []*task, needed, fresh map[schema.GroupKind]bool) {
	if len(tasks) == 0 {
		return
	}
	d.mapper.forget()
	var wait []*task
	for _, t := range tasks {
		if t.problem != nil {
			continue
		}
		kinds := definedKinds(t.document.object)
		for gvk := range kinds {
			fresh[gvk.GroupKind()] = true
		}
		for gvk, m := range kinds {
			if needed[gvk.GroupKind()] {
				d.mapper.learn(gvk, m)
				wait = append(wait, t)
			}
		}
	}
	inParallel(wait, func(t *task) {
		if err := d.established(ctx, t.document); err != nil {
			d.opts.Log.Debug("a kind is not served yet", "crd", t.document.object.GetName(), "error", err)
		}
	})
}

// definedKinds returns the kinds that a CustomResourceDefinition defines.
func definedKinds(crd *unstructured.Unstructured) map[schema.GroupVersionKind]mapping {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	scope, _, _ := unstructured.NestedString(crd.Object, "spec", "scope")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	kinds := make(map[schema.GroupVersionKind]mapping)
	for _, v := range versions {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		if served, _ := version["served"].(bool); served && name != "" {
			kinds[schema.GroupVersionKind{Group: group, Version: name, Kind: kind}] = mapping{plural: plural, namespaced: scope == "Namespaced"}
		}
	}
	return kinds
}

// established waits until the API server says that it serves the definition.
func (d *Deployer) established(ctx context.Context, crd document) error {
	at := target{gv: crd.gvk().GroupVersion(), plural: "customresourcedefinitions", name: crd.object.GetName()}
	deadline := time.Now().Add(establishingTime)
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, 200*time.Millisecond) {
		var got struct {
			Status struct {
				Conditions []struct{ Type, Status, Message string } `json:"conditions"`
			} `json:"status"`
		}
		err := d.client.get(ctx, at, &got)
		if err == nil {
			err = errors.New("it is not established")
			for _, c := range got.Status.Conditions {
				switch {
				case c.Type == "Established" && c.Status == "True":
					return nil
				case c.Type == "NamesAccepted" && c.Status == "False":
					return fmt.Errorf("its names are not accepted: %s", c.Message)
				}
			}
		}
		if time.Now().After(deadline) {
			return err
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}
