package deploy

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kombi-k8s/kombi/manifests"
	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

const configMaps = "/api/v1/namespaces/default/configmaps/"

// bundle returns bundled sets: the real CRDs, and what is given.
func bundle(t *testing.T, files map[string]string) fs.FS {
	t.Helper()
	crd, err := fs.ReadFile(manifests.FS(), "crds/kombi.dev_addons.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := fstest.MapFS{"crds/addons.yaml": {Data: crd}}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

// running starts a deployer and waits until it is ready.
func running(t *testing.T, api *fakeAPI, opts Options) (stop func()) {
	t.Helper()
	opts.Kube = api.config()
	if testing.Verbose() {
		opts.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- New(opts).Run(ctx, func() { close(ready) })
		close(done)
	}()
	stop = func() {
		cancel()
		select {
		case err := <-done: // nil once it is closed
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Run does not end")
		}
	}
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("Run ended: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("not ready after ten seconds")
	}
	return stop
}

// eventually waits until the condition is "", and reports it otherwise.
func eventually(t *testing.T, condition func() string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if last = condition(); last == "" {
			return
		}
	}
	t.Fatal(last)
}

func (f *fakeAPI) addOn(name string) *kombiv1.AddOn {
	object := f.get("/apis/kombi.dev/v1/addons/" + name)
	if object == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := json.Marshal(object)
	if err != nil {
		f.t.Fatal(err)
	}
	a := &kombiv1.AddOn{}
	if err := json.Unmarshal(data, a); err != nil {
		f.t.Fatal(err)
	}
	return a
}

// ready returns the Ready condition as "status/reason", and its message.
func (f *fakeAPI) ready(name string) (string, string) {
	if a := f.addOn(name); a != nil {
		for _, c := range a.Status.Conditions {
			if c.Type == kombiv1.ConditionReady {
				return string(c.Status) + "/" + c.Reason, c.Message
			}
		}
	}
	return "", ""
}

func (f *fakeAPI) expectReady(t *testing.T, addOn, want, message string) {
	t.Helper()
	eventually(t, func() string {
		got, text := f.ready(addOn)
		if got != want || !strings.Contains(text, message) {
			return addOn + " is " + got + " (" + text + "), want " + want + " (" + message + ")"
		}
		return ""
	})
}

func (f *fakeAPI) expect(t *testing.T, present bool, paths ...string) {
	t.Helper()
	eventually(t, func() string {
		for _, path := range paths {
			if (f.get(path) != nil) != present {
				return path + " is not as expected; there are " + strings.Join(f.paths(), " ")
			}
		}
		return ""
	})
}

// expectQuiet waits until a while has gone by without a write.
func (f *fakeAPI) expectQuiet(t *testing.T) {
	t.Helper()
	f.taken()
	for range 3 {
		time.Sleep(200 * time.Millisecond)
		if writes := f.taken(); len(writes) == 0 {
			return
		}
	}
	t.Errorf("writes go on: %v", f.taken())
}

func TestBundledSetsAreAppliedAndRecorded(t *testing.T) {
	api := newFakeAPI(t)
	api.establish["addons.kombi.dev"] = 0
	running(t, api, Options{Bundled: bundle(t, map[string]string{
		"a/x.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: default}\ndata: {ip: \"${IP}\"}\n",
	}), Vars: map[string]string{"IP": "10.43.0.10"}})
	x := api.get(configMaps + "x")
	if x == nil || x["data"].(map[string]any)["ip"] != "10.43.0.10" {
		t.Fatalf("at the time of ready x is %v", x)
	}
	if got := x["metadata"].(map[string]any)["labels"].(map[string]any)[LabelAddOn]; got != "kombi-a" {
		t.Errorf("label %v", got)
	}
	api.mu.Lock()
	api.serve(api.objects["/apis/apiextensions.k8s.io/v1/customresourcedefinitions/addons.kombi.dev"])
	api.mu.Unlock()
	api.expectReady(t, "kombi-a", "True/Applied", "1 object applied.")
	a := api.addOn("kombi-a")
	if a.Spec.Source != kombiv1.SourceBundled || len(a.Status.Objects) != 1 || a.Status.Objects[0].UID == "" || a.Status.LastApplied == nil {
		t.Errorf("the AddOn is %+v", a)
	}
	api.expectReady(t, "kombi-crds", "True/Applied", "")
	api.expectQuiet(t)
}

// served returns an API server whose AddOn kind is there from the start.
func served(t *testing.T) *fakeAPI {
	api := newFakeAPI(t)
	api.kinds["kombi.dev/v1"] = map[string]string{"addons": "AddOn"}
	api.global["addons"] = true
	return api
}

func TestARestartWritesNothing(t *testing.T) {
	api := served(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"shop.yaml": manifest("s"), "broken.yaml": "kind: ["})
	opts := Options{UserDir: dir, Bundled: bundle(t, map[string]string{"a/x.yaml": manifest("x")})}
	stop := running(t, api, opts)
	api.expectReady(t, "shop", "True/Applied", "")
	api.expectReady(t, "broken", "False/InvalidManifest", "broken.yaml: document 1, line")
	stop()
	api.taken()
	running(t, api, opts)
	time.Sleep(300 * time.Millisecond)
	if writes := api.taken(); len(writes) > 0 {
		t.Errorf("a restart writes %v", writes)
	}
}

func TestARestartRepairsWhatWasDeleted(t *testing.T) {
	api := served(t)
	opts := Options{Bundled: bundle(t, map[string]string{"a/x.yaml": manifest("x")})}
	stop := running(t, api, opts)
	api.expectReady(t, "kombi-a", "True/Applied", "")
	stop()
	api.mu.Lock()
	delete(api.objects, configMaps+"x")
	api.mu.Unlock()
	running(t, api, opts)
	api.expect(t, true, configMaps+"x")
}

func TestUserFilesAreFollowed(t *testing.T) {
	api := served(t)
	dir := filepath.Join(t.TempDir(), "manifests")
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, nil)})

	write(t, dir, map[string]string{"shop/a.yaml": manifest("a") + "---\n" + manifest("b"), "c.yaml": manifest("c")})
	api.expect(t, true, configMaps+"a", configMaps+"b", configMaps+"c")
	api.expectReady(t, "shop", "True/Applied", "2 objects applied.")

	write(t, dir, map[string]string{"shop/a.yaml": manifest("b")})
	api.expect(t, false, configMaps+"a")
	api.expect(t, true, configMaps+"b")

	// A subfolder that comes later is watched too.
	write(t, dir, map[string]string{"shop/more/": ""})
	write(t, dir, map[string]string{"shop/more/d.yaml": manifest("d")})
	api.expect(t, true, configMaps+"d")
	write(t, dir, map[string]string{"shop/more/d.yaml": manifest("e")})
	api.expect(t, true, configMaps+"e")
	api.expect(t, false, configMaps+"d")

	remove(t, filepath.Join(dir, "c.yaml"), filepath.Join(dir, "shop"))
	api.expect(t, false, configMaps+"b", configMaps+"c", configMaps+"e", "/apis/kombi.dev/v1/addons/shop", "/apis/kombi.dev/v1/addons/c")
	api.expectQuiet(t)
}

func remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesRemovedWhileStoppedArePruned(t *testing.T) {
	api := served(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.yaml": manifest("a")})
	opts := Options{UserDir: dir, Bundled: bundle(t, nil), Server: "one"}
	stop := running(t, api, opts)
	api.expectReady(t, "a", "True/Applied", "")
	stop()
	remove(t, filepath.Join(dir, "a.yaml"))

	// Another server's folder is not the one where a is missing.
	other := opts
	other.Server, other.UserDir = "two", t.TempDir()
	stop = running(t, api, other)
	api.expectQuiet(t)
	stop()
	api.expect(t, true, configMaps+"a")

	running(t, api, opts)
	api.expect(t, false, configMaps+"a", "/apis/kombi.dev/v1/addons/a")
}

func TestABadDocumentHoldsBackNothing(t *testing.T) {
	api := served(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"shop.yaml": manifest("a") + "---\nkind: [\n---\n" + manifest("b"), "good.yaml": manifest("c")})
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, nil)})
	api.expect(t, true, configMaps+"a", configMaps+"b", configMaps+"c")
	api.expectReady(t, "shop", "False/InvalidManifest", "2 of 3 applied. shop.yaml: document 2, line 5")
	eventually(t, func() string {
		for _, path := range api.paths() {
			if event := api.get(path); strings.Contains(path, "/events/shop.") && event["type"] == "Warning" {
				return ""
			}
		}
		return "there is no Event about shop"
	})

	// An object whose document became unreadable stays.
	write(t, dir, map[string]string{"shop.yaml": "kind: [\n---\n" + manifest("b")})
	api.expectReady(t, "shop", "False/InvalidManifest", "1 of 2 applied. shop.yaml: document 1, line")
	api.expectQuiet(t)
	api.expect(t, true, configMaps+"a")
	// Once the file can be read again, what it does not have goes.
	write(t, dir, map[string]string{"shop.yaml": manifest("b")})
	api.expect(t, false, configMaps+"a")
}

func TestAUserSetOverridesABundledObject(t *testing.T) {
	api := served(t)
	dir := t.TempDir()
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, map[string]string{"a/x.yaml": manifest("x") + "data: {from: bundled}\n---\n" + manifest("y")})})
	api.expectReady(t, "kombi-a", "True/Applied", "2 objects applied.")
	from := func(want string) {
		t.Helper()
		eventually(t, func() string {
			x := api.get(configMaps + "x")
			if x == nil {
				return "x is gone"
			}
			if data, _ := x["data"].(map[string]any); data["from"] != want {
				return "x is not from " + want
			}
			return ""
		})
	}
	before := api.get(configMaps + "x")["metadata"].(map[string]any)["uid"]
	write(t, dir, map[string]string{"mine.yaml": manifest("x") + "data: {from: user}\n"})
	from("user")
	api.expectReady(t, "kombi-a", "True/Applied", `1 object applied. ConfigMap default/x comes from the user's set "mine".`)
	api.expectReady(t, "mine", "True/Applied", "1 object applied.")
	api.expectQuiet(t)

	remove(t, filepath.Join(dir, "mine.yaml"))
	from("bundled")
	api.expectReady(t, "kombi-a", "True/Applied", "2 objects applied.")
	api.expect(t, false, "/apis/kombi.dev/v1/addons/mine")
	if after := api.get(configMaps + "x")["metadata"].(map[string]any)["uid"]; after != before {
		t.Error("x was deleted and made again on its way")
	}
}

func TestSkip(t *testing.T) {
	api := served(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.yaml": manifest("a"), "shop/b.yaml": manifest("b"), "never.yaml": manifest("n"), "never.yaml.skip": ""})
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, map[string]string{"z/z.yaml": manifest("z")})})
	api.expectReady(t, "a", "True/Applied", "")
	write(t, dir, map[string]string{"a.yaml.skip": "", "shop.skip": "", "kombi-z.skip": ""})
	api.expectReady(t, "shop", "Unknown/Skipped", "shop.skip")
	api.expectReady(t, "kombi-z", "Unknown/Skipped", "kombi-z.skip")
	write(t, dir, map[string]string{"a.yaml": manifest("a2"), "shop/b.yaml": manifest("b2")})
	api.expectQuiet(t)
	api.expect(t, true, configMaps+"a", configMaps+"b", configMaps+"z")
	api.expect(t, false, configMaps+"a2", configMaps+"b2", configMaps+"n")
	remove(t, filepath.Join(dir, "a.yaml.skip"), filepath.Join(dir, "shop.skip"), filepath.Join(dir, "kombi-z.skip"))
	api.expect(t, true, configMaps+"a2", configMaps+"b2")
	api.expect(t, false, configMaps+"a", configMaps+"b")
	api.expectReady(t, "kombi-z", "True/Applied", "")
}

func TestDisable(t *testing.T) {
	api := served(t)
	opts := Options{Bundled: bundle(t, map[string]string{"a/x.yaml": manifest("x"), "b/y.yaml": manifest("y")})}
	stop := running(t, api, opts)
	api.expectReady(t, "kombi-a", "True/Applied", "")
	api.expectReady(t, "kombi-b", "True/Applied", "")
	stop()
	opts.Disable = []string{"a", "network"}
	stop = running(t, api, opts)
	api.expect(t, false, configMaps+"x", "/apis/kombi.dev/v1/addons/kombi-a")
	api.expect(t, true, configMaps+"y")
	stop()
	opts.Disable = nil
	running(t, api, opts)
	api.expect(t, true, configMaps+"x", "/apis/kombi.dev/v1/addons/kombi-a")
}

const widgetCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true}]
`

const widget = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w, namespace: parts}\n"

func TestAKindIsWaitedFor(t *testing.T) {
	api := served(t)
	api.establish["widgets.example.com"] = 5
	dir := t.TempDir()
	// By their names the object comes first, then the namespace, then the kind.
	write(t, dir, map[string]string{"a.yaml": widget, "b.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: parts}\n", "c.yaml": widgetCRD})
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, nil)})
	api.expectReady(t, "a", "True/Applied", "1 object applied.")
	writes := slices.DeleteFunc(api.taken(), func(w string) bool { return strings.Contains(w, "kombi.dev") || strings.Contains(w, "events") })
	want := []string{"PATCH /api/v1/namespaces/parts", "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", "PATCH /apis/example.com/v1/namespaces/parts/widgets/w"}
	if !slices.Equal(writes, want) {
		t.Errorf("writes %q, want %q", writes, want)
	}
}

func TestAMissingKindIsRetried(t *testing.T) {
	api := served(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.yaml": widget + "---\n" + manifest("ok")})
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, nil)})
	api.expectReady(t, "a", "False/KindMissing", "a.yaml: document 1, line 1: Widget.example.com parts/w waits for its kind")
	api.expect(t, true, configMaps+"ok")
	api.mu.Lock()
	api.kinds["example.com/v1"] = map[string]string{"widgets": "Widget"}
	api.mu.Unlock()
	api.expectReady(t, "a", "True/Applied", "2 objects applied.")
}

func TestARefusalIsTold(t *testing.T) {
	api := served(t)
	var refusing = true
	api.refuse = func(verb, path string, _ map[string]any) (int, string) {
		if refusing && verb == http.MethodPatch && strings.HasSuffix(path, "/b") {
			return http.StatusUnprocessableEntity, "Invalid"
		}
		return 0, ""
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.yaml": manifest("a") + "---\n" + manifest("b")})
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, nil)})
	api.expectReady(t, "a", "False/ApplyFailed", "1 of 2 applied. a.yaml: document 2, line 5: ConfigMap default/b was refused: refused by the test")
	api.mu.Lock()
	refusing = false
	api.mu.Unlock()
	api.expectReady(t, "a", "True/Applied", "2 objects applied.")
}

func TestAnUnreadableFolderChangesNothing(t *testing.T) {
	api := served(t)
	dir := filepath.Join(t.TempDir(), "manifests")
	write(t, dir, map[string]string{"mine.yaml": manifest("x") + "data: {from: user}\n", "a.yaml": manifest("a")})
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, map[string]string{"b/x.yaml": manifest("x")})})
	api.expectReady(t, "mine", "True/Applied", "")
	api.expectReady(t, "a", "True/Applied", "")
	api.taken()
	// As when the file system of the folder is unmounted.
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if writes := api.taken(); len(writes) > 0 {
		t.Errorf("writes %v", writes)
	}
	write(t, dir+".away", map[string]string{"b.yaml": manifest("b")})
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	api.expect(t, true, configMaps+"b")
}

func TestForeignObjectsOfTheSameNameAreKept(t *testing.T) {
	api := served(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.yaml": manifest("a")})
	running(t, api, Options{UserDir: dir, Bundled: bundle(t, nil)})
	api.expectReady(t, "a", "True/Applied", "")
	api.mu.Lock()
	delete(api.objects, configMaps+"a")
	api.mu.Unlock()
	api.set(configMaps+"a", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "default"}})
	remove(t, filepath.Join(dir, "a.yaml"))
	api.expect(t, false, "/apis/kombi.dev/v1/addons/a")
	api.expect(t, true, configMaps+"a")
}

func TestReadyDoesNotWaitForEver(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as the deployer is patient")
	}
	api := served(t)
	api.refuse = func(verb, path string, _ map[string]any) (int, string) {
		if verb == http.MethodPatch && strings.HasSuffix(path, "/x") {
			return http.StatusInternalServerError, "InternalError"
		}
		return 0, ""
	}
	running(t, api, Options{Bundled: bundle(t, map[string]string{"a/x.yaml": manifest("x")})})
	api.expectReady(t, "kombi-a", "False/ApplyFailed", "a/x.yaml: document 1, line 1: ConfigMap default/x was refused")
}
