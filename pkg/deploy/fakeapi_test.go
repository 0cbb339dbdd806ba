package deploy

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// fakeAPI is as much of an API server as deploying needs: objects in a map,
// discovery, server-side apply that replaces, CRDs that are established after a
// number of reads, and a count of the writes that changed something.
type fakeAPI struct {
	t      *testing.T
	server *httptest.Server

	mu        sync.Mutex
	kinds     map[string]map[string]string // group/version → plural → kind
	global    map[string]bool              // plurals without a namespace
	objects   map[string]map[string]any    // path → object
	establish map[string]int               // CRD → reads until it is established
	revision  int
	writes    []string // verb and path
	requests  int
	refuse    func(verb, path string, body map[string]any) (int, string)
}

func newFakeAPI(t *testing.T) *fakeAPI {
	f := &fakeAPI{
		t: t,
		kinds: map[string]map[string]string{
			"v1":                              {"configmaps": "ConfigMap", "namespaces": "Namespace", "services": "Service", "events": "Event"},
			"apiextensions.k8s.io/v1":         {"customresourcedefinitions": "CustomResourceDefinition"},
			"rbac.authorization.k8s.io/v1":    {"clusterroles": "ClusterRole", "clusterrolebindings": "ClusterRoleBinding", "roles": "Role", "rolebindings": "RoleBinding"},
			"storage.k8s.io/v1":               {"storageclasses": "StorageClass", "csidrivers": "CSIDriver"},
			"admissionregistration.k8s.io/v1": {"validatingwebhookconfigurations": "ValidatingWebhookConfiguration"},
		},
		global: map[string]bool{
			"namespaces": true, "customresourcedefinitions": true, "clusterroles": true, "clusterrolebindings": true,
			"storageclasses": true, "csidrivers": true, "validatingwebhookconfigurations": true,
		},
		objects:   make(map[string]map[string]any),
		establish: make(map[string]int),
	}
	f.server = httptest.NewServer(f)
	t.Cleanup(f.server.Close)
	return f
}

func (f *fakeAPI) config() *rest.Config { return &rest.Config{Host: f.server.URL} }

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	path := strings.TrimSuffix(r.URL.Path, "/")
	body := map[string]any{}
	if data, _ := io.ReadAll(r.Body); len(data) > 0 {
		if err := json.Unmarshal(data, &body); err != nil {
			f.status(w, http.StatusBadRequest, "BadRequest", err.Error())
			return
		}
	}
	if f.refuse != nil {
		if code, reason := f.refuse(r.Method, path, body); code != 0 {
			f.status(w, code, reason, "refused by the test")
			return
		}
	}
	gv, rest := splitPath(path)
	plurals := f.kinds[gv]
	if plurals == nil {
		f.status(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
		return
	}
	if rest == "" {
		f.discovery(w, gv, plurals)
		return
	}
	plural, name, sub := f.parts(rest)
	if plurals[plural] == "" {
		f.status(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
		return
	}
	object := strings.TrimSuffix(path, "/"+sub)
	switch r.Method {
	case http.MethodGet:
		if name == "" {
			f.list(w, path, plurals[plural], r.URL.Query().Get("labelSelector"))
			return
		}
		f.established(object, plural)
		f.answer(w, f.objects[object])
	case http.MethodPost:
		name = body["metadata"].(map[string]any)["name"].(string)
		if f.objects[path+"/"+name] != nil {
			f.status(w, http.StatusConflict, "AlreadyExists", "it exists")
			return
		}
		f.answer(w, f.put(r.Method, path+"/"+name, body))
	case http.MethodPut:
		if f.objects[object] == nil {
			f.answer(w, nil)
			return
		}
		next := maps.Clone(f.objects[object])
		if sub == "status" {
			next["status"] = body["status"]
		} else {
			status := next["status"]
			next = body
			next["status"] = status
		}
		f.answer(w, f.put(r.Method, object, next))
	case http.MethodPatch:
		if r.URL.Query().Get("dryRun") != "" {
			f.answer(w, body)
			return
		}
		f.answer(w, f.put(r.Method, object, body))
	case http.MethodDelete:
		old := f.objects[object]
		if old == nil {
			f.answer(w, nil)
			return
		}
		if p, ok := body["preconditions"].(map[string]any); ok && p["uid"] != nil && p["uid"] != old["metadata"].(map[string]any)["uid"] {
			f.status(w, http.StatusConflict, "Conflict", "the uid is another")
			return
		}
		delete(f.objects, object)
		f.writes = append(f.writes, "DELETE "+object)
		f.answer(w, old)
	}
}

// put stores an object and counts the write if it changes anything.
func (f *fakeAPI) put(verb, path string, next map[string]any) map[string]any {
	old := f.objects[path]
	meta := next["metadata"].(map[string]any)
	meta["generation"] = 1
	if old != nil {
		oldMeta := old["metadata"].(map[string]any)
		meta["uid"], meta["resourceVersion"] = oldMeta["uid"], oldMeta["resourceVersion"]
		if next["status"] == nil && old["status"] != nil {
			next["status"] = old["status"]
		}
		a, _ := json.Marshal(old)
		b, _ := json.Marshal(next)
		if string(a) == string(b) {
			return next
		}
	}
	f.revision++
	meta["resourceVersion"] = fmt.Sprint(f.revision)
	if old == nil {
		meta["uid"] = fmt.Sprintf("uid-%d", f.revision)
	}
	f.objects[path] = next
	f.writes = append(f.writes, verb+" "+path)
	return next
}

// established moves a CRD on: after some reads its kind is served.
func (f *fakeAPI) established(path, plural string) {
	crd := f.objects[path]
	if crd == nil || plural != "customresourcedefinitions" {
		return
	}
	name := path[strings.LastIndex(path, "/")+1:]
	if f.establish[name] > 0 {
		f.establish[name]--
		return
	}
	f.serve(crd)
	crd["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
}

func (f *fakeAPI) serve(crd map[string]any) {
	spec := crd["spec"].(map[string]any)
	names := spec["names"].(map[string]any)
	for _, v := range spec["versions"].([]any) {
		gv := spec["group"].(string) + "/" + v.(map[string]any)["name"].(string)
		if f.kinds[gv] == nil {
			f.kinds[gv] = map[string]string{}
		}
		f.kinds[gv][names["plural"].(string)] = names["kind"].(string)
		f.global[names["plural"].(string)] = spec["scope"] == "Cluster"
	}
}

func (f *fakeAPI) discovery(w http.ResponseWriter, gv string, plurals map[string]string) {
	resources := []any{}
	for plural, kind := range plurals {
		resources = append(resources,
			map[string]any{"name": plural + "/status", "kind": kind, "namespaced": !f.global[plural]},
			map[string]any{"name": plural, "kind": kind, "namespaced": !f.global[plural]})
	}
	f.answer(w, map[string]any{"kind": "APIResourceList", "groupVersion": gv, "resources": resources})
}

func (f *fakeAPI) list(w http.ResponseWriter, path, kind, selector string) {
	items := []any{}
	last := path[strings.LastIndex(path, "/"):]
	for _, key := range slices.Sorted(maps.Keys(f.objects)) {
		if !strings.Contains(key, last+"/") {
			continue
		}
		if name, value, ok := strings.Cut(selector, "="); ok {
			labels, _ := f.objects[key]["metadata"].(map[string]any)["labels"].(map[string]any)
			if labels[name] != value {
				continue
			}
		}
		items = append(items, f.objects[key])
	}
	gv, _ := splitPath(path)
	f.answer(w, map[string]any{"kind": kind + "List", "apiVersion": gv, "metadata": map[string]any{}, "items": items})
}

func (f *fakeAPI) answer(w http.ResponseWriter, object map[string]any) {
	if object == nil {
		f.status(w, http.StatusNotFound, "NotFound", "it is not there")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

func (f *fakeAPI) status(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code,
	})
}

// splitPath cuts a path into group/version and the rest.
func splitPath(path string) (gv, rest string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	n := 2
	if parts[0] == "apis" {
		n = 3
	}
	n = min(n, len(parts))
	return strings.Join(parts[1:n], "/"), strings.Join(parts[n:], "/")
}

func (f *fakeAPI) parts(rest string) (plural, name, sub string) {
	parts := strings.Split(rest, "/")
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	parts = append(parts, "", "")
	return parts[0], parts[1], parts[2]
}

// get returns an object by its path below the API root.
func (f *fakeAPI) get(path string) map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[path]
}

// put an object from outside, as another user would.
func (f *fakeAPI) set(path string, object map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put("SET", path, object)
}

// taken returns the writes so far and forgets them.
func (f *fakeAPI) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	writes := f.writes
	f.writes = nil
	return writes
}

func (f *fakeAPI) paths() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.objects))
}
