package deploy

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// RBACOptions are what [RBAC] needs.
type RBACOptions struct {
	// Log receives one line when roles change.
	Log *slog.Logger
	// Kube reaches the API server as a member of system:masters: nobody else may
	// grant rights that they do not have.
	Kube *rest.Config
	// Roles holds manifests of roles and bindings in its root folder; see the
	// folder rbac of the package manifests.
	Roles fs.FS
}

// RBAC is the component "rbac": it gives the in-process identities their rights.
// It is apart from the [Deployer] because it goes first, must be quick, and needs
// rights that the deployer gets from it.
type RBAC struct {
	opts RBACOptions
}

// NewRBAC returns the component.
func NewRBAC(opts RBACOptions) *RBAC {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &RBAC{opts: opts}
}

// Name returns "rbac".
func (r *RBAC) Name() string { return "rbac" }

// Needs lists the API server.
func (r *RBAC) Needs() []string { return []string{"apiserver"} }

// Restartable says that Run may be called again.
func (r *RBAC) Restartable() bool { return true }

// rbacSet is the value of the addon label on these objects, by which those that
// an earlier version made are found.
const rbacSet = BundledPrefix + rbacFolder

// rbacKinds are the kinds that may occur, with their names in paths.
func rbacKinds() map[string]mapping {
	return map[string]mapping{
		"ClusterRole":        {plural: "clusterroles"},
		"ClusterRoleBinding": {plural: "clusterrolebindings"},
		"Role":               {plural: "roles", namespaced: true},
		"RoleBinding":        {plural: "rolebindings", namespaced: true},
	}
}

func rbacGroup() schema.GroupVersion {
	return schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
}

// Run makes the roles what the program says, calls ready, and waits. It reads
// four lists and writes only differences.
func (r *RBAC) Run(ctx context.Context, ready func()) error {
	wanted, err := r.load()
	if err != nil {
		return err
	}
	c, err := newClient(r.opts.Kube)
	if err != nil {
		return fmt.Errorf("the roles cannot be applied: %w", err)
	}
	started, told := time.Now(), false
	for delay := 20 * time.Millisecond; ; delay = min(2*delay, 200*time.Millisecond) {
		changed, err := reconcileRBAC(ctx, c, wanted)
		if err == nil {
			if changed > 0 {
				r.opts.Log.Info("roles of the components applied", "objects", changed)
			}
			break
		}
		// While the API server fills its caches, and makes kube-system, almost
		// anything may be refused; what lasts longer is worth telling.
		level := slog.LevelDebug
		if time.Since(started) > patience && !told {
			level, told = slog.LevelWarn, true
		}
		r.opts.Log.Log(ctx, level, "the roles of the components cannot be applied; trying on", "error", err)
		if err := sleep(ctx, delay); err != nil {
			return stopped(ctx, err)
		}
	}
	ready()
	<-ctx.Done()
	return nil
}

func (r *RBAC) load() ([]document, error) {
	if r.opts.Roles == nil {
		return nil, nil
	}
	entries, err := fs.ReadDir(r.opts.Roles, ".")
	if err != nil {
		return nil, fmt.Errorf("the bundled roles cannot be read: %w", err)
	}
	kinds := rbacKinds()
	var all []document
	for _, entry := range entries {
		if entry.IsDir() || !isManifest(entry.Name()) {
			continue
		}
		data, err := fs.ReadFile(r.opts.Roles, path.Join(".", entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("the bundled roles cannot be read: %w", err)
		}
		documents, problems := parse(entry.Name(), data)
		if len(problems) > 0 {
			return nil, fmt.Errorf("the bundled roles are broken: %s", problems[0].text)
		}
		for _, d := range documents {
			m, ok := kinds[d.gvk().Kind]
			if !ok || d.gvk().GroupVersion() != rbacGroup() {
				return nil, fmt.Errorf("the bundled roles are broken: %s: %s is neither a role nor a binding", d.where(), d.key())
			}
			d.object = sanitized(d.object, m, rbacSet)
			all = append(all, d)
		}
	}
	return all, nil
}

// reconcileRBAC makes, changes and deletes roles until those that bear the label
// are the wanted ones, and returns how many it wrote.
func reconcileRBAC(ctx context.Context, c *client, wanted []document) (int, error) {
	var (
		mu      sync.Mutex
		first   error
		present = make(map[objectKey]*unstructured.Unstructured)
	)
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && first == nil {
			first = err
		}
	}
	kinds := rbacKinds()
	var names []string
	for kind := range kinds {
		names = append(names, kind)
	}
	inParallel(names, func(kind string) {
		var list unstructured.UnstructuredList
		if err := c.list(ctx, target{gv: rbacGroup(), plural: kinds[kind].plural}, LabelAddOn+"="+rbacSet, &list); err != nil {
			fail(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range list.Items {
			item := &list.Items[i]
			item.SetKind(kind) // items of a list come without one
			item.SetAPIVersion(rbacGroup().String())
			present[document{object: item}.key()] = item
		}
	})
	if first != nil {
		return 0, first
	}

	var writes []func() error
	for _, d := range wanted {
		have := present[d.key()]
		delete(present, d.key())
		if have == nil || !sameRBAC(have, d.object) {
			writes = append(writes, func() error { return writeRBAC(ctx, c, kinds, d.object, have) })
		}
	}
	for _, stale := range present {
		writes = append(writes, func() error {
			return ignoreNotFound(c.delete(ctx, rbacTarget(kinds, stale), stale.GetUID()))
		})
	}
	inParallel(writes, func(write func() error) { fail(write()) })
	return len(writes), first
}

func rbacTarget(kinds map[string]mapping, o *unstructured.Unstructured) target {
	return target{gv: rbacGroup(), plural: kinds[o.GetKind()].plural, namespace: o.GetNamespace(), name: o.GetName()}
}

// sameRBAC compares what decides about rights.
func sameRBAC(a, b *unstructured.Unstructured) bool {
	for _, field := range []string{"rules", "aggregationRule", "roleRef", "subjects"} {
		if !equality.Semantic.DeepEqual(a.Object[field], b.Object[field]) {
			return false
		}
	}
	return equality.Semantic.DeepEqual(a.GetLabels(), b.GetLabels())
}

func writeRBAC(ctx context.Context, c *client, kinds map[string]mapping, object, have *unstructured.Unstructured) error {
	at := rbacTarget(kinds, object)
	collection := at
	collection.name = ""
	switch {
	case have == nil:
	case !equality.Semantic.DeepEqual(have.Object["roleRef"], object.Object["roleRef"]):
		// A binding cannot be pointed at another role.
		if err := ignoreNotFound(c.delete(ctx, at, have.GetUID())); err != nil {
			return err
		}
	default:
		return c.update(ctx, at, object, nil)
	}
	err := c.create(ctx, collection, object, nil)
	if apierrors.IsAlreadyExists(err) {
		// It is there without the label, from whomever: it becomes ours.
		err = c.update(ctx, at, object, nil)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
