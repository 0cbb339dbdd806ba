package deploy

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/kombi-k8s/kombi/manifests"
	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
	"github.com/kombi-k8s/kombi/pkg/component"
	"github.com/kombi-k8s/kombi/pkg/deploy"
)

const serverName = "server-1"

// run runs components that need the API server until stop is called or the test
// ends, and waits until all are ready.
func run(t *testing.T, components ...component.Component) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var ends []func()
	for _, c := range components {
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- c.Run(ctx, sync.OnceFunc(func() { close(ready) }))
			close(done)
		}()
		select {
		case <-ready:
		case err := <-done:
			cancel()
			t.Fatalf("%s ended: %v", c.Name(), err)
		case <-time.After(20 * time.Second):
			cancel()
			t.Fatalf("%s is not ready after 20 s", c.Name())
		}
		ends = append(ends, func() {
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("%s: %v", c.Name(), err)
				}
			case <-time.After(20 * time.Second):
				t.Errorf("%s does not end", c.Name())
			}
		})
	}
	stop = func() {
		cancel()
		for _, end := range ends {
			end()
		}
	}
	t.Cleanup(stop)
	return stop
}

// roles returns the component that gives the identities their rights.
func roles(t *testing.T) *deploy.RBAC {
	t.Helper()
	files, err := fs.Sub(manifests.FS(), manifests.RBACFolder)
	if err != nil {
		t.Fatal(err)
	}
	return deploy.NewRBAC(deploy.RBACOptions{Log: shared.log, Kube: shared.admin, Roles: files})
}

// deployer returns a deployer of the real bundled sets that acts as itself.
func deployer(t *testing.T, dir string, disable ...string) *deploy.Deployer {
	t.Helper()
	identity, err := shared.identity("system:kombi:deploy")
	if err != nil {
		t.Fatal(err)
	}
	return deploy.New(deploy.Options{
		Log: shared.log, Kube: identity, Bundled: manifests.FS(), UserDir: dir, Disable: disable,
		Vars: manifests.Vars([]netip.Addr{netip.MustParseAddr("10.43.0.10")}, "cluster.local"), Server: serverName,
	})
}

// write puts a file into the manifests folder as a careful program does.
func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	must(t, os.WriteFile(temporary, []byte(text), 0o600))
	must(t, os.Rename(temporary, path))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = condition(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// addOn gets an AddOn.
func addOn(name string) (*kombiv1.AddOn, error) {
	client, err := dynamic.NewForConfig(shared.admin)
	if err != nil {
		return nil, err
	}
	object, err := client.Resource(kombiv1.GroupVersion().WithResource("addons")).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	a := &kombiv1.AddOn{}
	return a, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, a)
}

// expectAddOn waits until an AddOn's Ready condition has the reason and says the
// text.
func expectAddOn(t *testing.T, name, reason, text string) *kombiv1.AddOn {
	t.Helper()
	var last *kombiv1.AddOn
	eventually(t, "AddOn "+name, func() error {
		a, err := addOn(name)
		if err != nil {
			return err
		}
		last = a
		ready := meta.FindStatusCondition(a.Status.Conditions, kombiv1.ConditionReady)
		if ready == nil || ready.Reason != reason || !strings.Contains(ready.Message, text) {
			return fmt.Errorf("is %+v, want %s with %q", ready, reason, text)
		}
		return nil
	})
	return last
}

// expectGone waits until get says that the object does not exist.
func expectGone(t *testing.T, what string, get func() error) {
	t.Helper()
	eventually(t, what+" is gone", func() error {
		switch err := get(); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it is there")
	})
}

func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %q, namespace: default}\ndata: {value: %q}\n", name, value)
}

func valueOf(name string) (string, error) {
	m, err := shared.client.CoreV1().ConfigMaps("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return m.Data["value"], nil
}

func expectValue(t *testing.T, name, want string) {
	t.Helper()
	eventually(t, "ConfigMap "+name, func() error {
		got, err := valueOf(name)
		if err == nil && got != want {
			err = fmt.Errorf("has %q, want %q", got, want)
		}
		return err
	})
}

// revision is the number of the last write to the datastore.
func revision(t *testing.T) string {
	t.Helper()
	list, err := shared.client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{Limit: 1})
	must(t, err)
	return list.ResourceVersion
}

func TestBundledSets(t *testing.T) {
	began := time.Now()
	stopRoles := run(t, roles(t))
	afterRoles := time.Now()
	stop := run(t, deployer(t, ""))
	t.Logf("roles took %s, manifests %s", afterRoles.Sub(began).Round(time.Millisecond), time.Since(afterRoles).Round(time.Millisecond))

	// What ready promises is there at once.
	service, err := shared.client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	must(t, err)
	if service.Spec.ClusterIP != "10.43.0.10" || len(service.Spec.Ports) != 3 || service.Spec.Selector != nil {
		t.Errorf("the DNS service is %+v", service.Spec)
	}
	class, err := shared.client.StorageV1().StorageClasses().Get(t.Context(), "local", metav1.GetOptions{})
	must(t, err)
	if class.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" {
		t.Error("local is not the default class")
	}
	for _, name := range []string{"kombi-crds", "kombi-dns", "kombi-metrics-server", "kombi-storage"} {
		expectAddOn(t, name, kombiv1.ReasonApplied, "applied.")
	}
	// Events are sent in the background; those of the first start have to be there
	// before it ends.
	eventually(t, "an Event for each bundled set", func() error {
		list, err := shared.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=AddOn"})
		if err == nil && len(list.Items) != 4 {
			err = fmt.Errorf("%d Events, want 4", len(list.Items))
		}
		return err
	})
	stop()
	stopRoles()

	// A second start with nothing new writes nothing at all.
	before := revision(t)
	stopRoles = run(t, roles(t))
	began = time.Now()
	stop = run(t, deployer(t, ""))
	t.Logf("the second time the manifests took %s", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	time.Sleep(500 * time.Millisecond) // the second pass, which comes after ready
	stop()
	stopRoles()
	list, err := shared.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=AddOn"})
	must(t, err)
	if len(list.Items) != 4 {
		t.Errorf("%d Events about AddOns, want 4", len(list.Items))
	}
	for _, name := range []string{"kombi-crds", "kombi-dns", "kombi-metrics-server", "kombi-storage"} {
		a, err := addOn(name)
		must(t, err)
		if a.ResourceVersion > before && len(a.ResourceVersion) >= len(before) {
			t.Errorf("AddOn %s was written at %s, after %s", name, a.ResourceVersion, before)
		}
	}
	again, err := shared.client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	must(t, err)
	if again.ResourceVersion != service.ResourceVersion {
		t.Error("the DNS service was written again")
	}
}

func TestDisableAndOverride(t *testing.T) {
	dir := t.TempDir()
	run(t, roles(t))
	stop := run(t, deployer(t, dir))
	class := func() (string, error) {
		c, err := shared.client.StorageV1().StorageClasses().Get(t.Context(), "local", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return c.Annotations["storageclass.kubernetes.io/is-default-class"], nil
	}
	write(t, filepath.Join(dir, "storage.yaml"), `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: local.kombi.dev
reclaimPolicy: Delete
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: false
`)
	expectAddOn(t, "storage", kombiv1.ReasonApplied, "1 object applied.")
	expectAddOn(t, "kombi-storage", kombiv1.ReasonApplied, `StorageClass.storage.k8s.io local comes from the user's set "storage".`)
	if isDefault, err := class(); err != nil || isDefault != "" {
		t.Errorf("the overridden class is default %q (%v)", isDefault, err)
	}
	must(t, os.Remove(filepath.Join(dir, "storage.yaml")))
	expectAddOn(t, "kombi-storage", kombiv1.ReasonApplied, "3 objects applied.")
	if isDefault, err := class(); err != nil || isDefault != "true" {
		t.Errorf("the bundled class is default %q (%v)", isDefault, err)
	}
	expectGone(t, "AddOn storage", func() error { _, err := addOn("storage"); return err })
	stop()

	stop = run(t, deployer(t, dir, "storage"))
	expectGone(t, "class", func() error { _, err := class(); return err })
	expectGone(t, "AddOn", func() error { _, err := addOn("kombi-storage"); return err })
	stop()
	run(t, deployer(t, dir))
	expectAddOn(t, "kombi-storage", kombiv1.ReasonApplied, "3 objects applied.")
}

func TestUserSets(t *testing.T) {
	dir := t.TempDir()
	run(t, roles(t), deployer(t, dir))

	// A kind, an object of it, its namespace, in the wrong order and in two sets.
	write(t, filepath.Join(dir, "a.yaml"), "apiVersion: example.com/v1\nkind: Backup\nmetadata: {name: daily, namespace: backups}\nspec: {keep: 3}\n")
	write(t, filepath.Join(dir, "z", "crd.yaml"), `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: backups.example.com}
spec:
  group: example.com
  names: {kind: Backup, plural: backups, singular: backup}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {keep: {type: integer}}}}}}
`)
	write(t, filepath.Join(dir, "z", "ns.yaml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: backups}\n")
	expectAddOn(t, "a", kombiv1.ReasonApplied, "1 object applied.")
	expectAddOn(t, "z", kombiv1.ReasonApplied, "2 objects applied.")

	// One bad document of each sort among good ones.
	write(t, filepath.Join(dir, "mixed.yaml"), strings.Join([]string{
		configMap("good-1", "x"), "kind: [\n", configMap("good-2", "x"),
		"apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: default}\nspec: {ports: [{port: 99999}]}\n",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: typo, namespace: default}\nspec: {replicaz: 1}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lost, namespace: nowhere}\n",
		"apiVersion: nobody.example/v1\nkind: Nothing\nmetadata: {name: x}\n",
	}, "---\n"))
	a := expectAddOn(t, "mixed", kombiv1.ReasonInvalidManifest, "2 of 7 applied. mixed.yaml: document 2, line")
	degraded := meta.FindStatusCondition(a.Status.Conditions, kombiv1.ConditionDegraded)
	for _, want := range []string{
		"mixed.yaml: document 4, line 13: Service default/bad was refused: ",
		"99999",
		"mixed.yaml: document 5, line 18: Deployment.apps default/typo was refused: ", "replicaz",
		`mixed.yaml: document 6, line 23: ConfigMap nowhere/lost cannot be made: there is no namespace "nowhere"`,
		"mixed.yaml: document 7, line 27: Nothing.nobody.example x waits for its kind",
	} {
		if !strings.Contains(degraded.Message, want) {
			t.Errorf("the condition does not say %q:\n%s", want, degraded.Message)
		}
	}
	expectValue(t, "good-2", "x")

	// Another manager's field is left alone, with the next action, until told.
	write(t, filepath.Join(dir, "owned.yaml"), configMap("owned", "mine"))
	expectValue(t, "owned", "mine")
	_, err := shared.client.CoreV1().ConfigMaps("default").Patch(t.Context(), "owned", "application/merge-patch+json", []byte(`{"data":{"value":"theirs"}}`), metav1.PatchOptions{FieldManager: "somebody"})
	must(t, err)
	write(t, filepath.Join(dir, "owned.yaml"), configMap("owned", "new"))
	expectAddOn(t, "owned", kombiv1.ReasonConflict, `take them over with the annotation kombi.dev/force: "true"`)
	write(t, filepath.Join(dir, "owned.yaml"), strings.Replace(configMap("owned", "new"), "namespace: default", `namespace: default, annotations: {kombi.dev/force: "true"}`, 1))
	expectValue(t, "owned", "new")

	// What cannot be changed is made again where that is allowed.
	class := "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fixed, annotations: {kombi.dev/recreate: \"%v\"}}\nprovisioner: example.com/x\nparameters: {a: \"%d\"}\n"
	write(t, filepath.Join(dir, "fixed.yaml"), fmt.Sprintf(class, false, 1))
	expectAddOn(t, "fixed", kombiv1.ReasonApplied, "")
	write(t, filepath.Join(dir, "fixed.yaml"), fmt.Sprintf(class, false, 2))
	expectAddOn(t, "fixed", kombiv1.ReasonApplyFailed, "cannot be changed in place")
	write(t, filepath.Join(dir, "fixed.yaml"), fmt.Sprintf(class, true, 2))
	expectAddOn(t, "fixed", kombiv1.ReasonApplied, "")

	for _, name := range []string{"a.yaml", "z", "mixed.yaml", "owned.yaml", "fixed.yaml"} {
		must(t, os.RemoveAll(filepath.Join(dir, name)))
	}
	for _, name := range []string{"a", "z", "mixed", "owned", "fixed"} {
		expectGone(t, "AddOn "+name, func() error { _, err := addOn(name); return err })
	}
	expectGone(t, "namespace", func() error {
		_, err := shared.client.CoreV1().Namespaces().Get(t.Context(), "backups", metav1.GetOptions{})
		return err
	})
	for _, name := range []string{"good-1", "good-2", "owned"} {
		expectGone(t, name, func() error { _, err := valueOf(name); return err })
	}
}

// TestStopsAtAnyMoment stops the deployer again and again in the middle of what
// it does while the files change, and expects that the end is what the files say.
func TestStopsAtAnyMoment(t *testing.T) {
	dir := t.TempDir()
	run(t, roles(t))
	run(t, deployer(t, ""))() // the kinds are there
	random := rand.New(rand.NewPCG(1, 2))
	names := map[string]bool{}
	for round := range 15 {
		var text []string
		for i := range 4 {
			name := fmt.Sprintf("r%d-%d", round%5, i)
			names[name] = true
			text = append(text, configMap(name, fmt.Sprint(round)))
		}
		write(t, filepath.Join(dir, fmt.Sprintf("set-%d.yaml", round%3)), strings.Join(text, "---\n"))
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(150))*time.Millisecond)
		if err := deployer(t, dir).Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
		cancel()
	}
	stop := run(t, deployer(t, dir))
	for i := range 3 {
		expectAddOn(t, fmt.Sprintf("set-%d", i), kombiv1.ReasonApplied, "4 objects applied.")
	}
	stop()
	must(t, os.RemoveAll(dir))
	must(t, os.MkdirAll(dir, 0o700))
	run(t, deployer(t, dir))
	for name := range names {
		expectGone(t, name, func() error { _, err := valueOf(name); return err })
	}
}
