package dns

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// fakeAPI is as much of an API server as informers need: lists, watches, also
// with initial events, and the creation of Events.
type fakeAPI struct {
	server *httptest.Server

	mu       sync.Mutex
	refuse   bool
	version  int
	objects  map[string]map[string]runtime.Object // resource to namespace/name to object
	watchers map[chan watchEvent]string           // to resource
	events   []corev1.Event
}

type watchEvent struct {
	Type   string         `json:"type"`
	Object runtime.Object `json:"object"`
}

func newFakeAPI(t *testing.T, objects ...runtime.Object) *fakeAPI {
	t.Helper()
	f := &fakeAPI{objects: map[string]map[string]runtime.Object{}, watchers: map[chan watchEvent]string{}}
	f.server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.server.CloseClientConnections()
		f.server.Close()
	})
	for _, o := range objects {
		f.put(o)
	}
	return f
}

func (f *fakeAPI) config() *rest.Config { return &rest.Config{Host: f.server.URL, QPS: -1} }

func (f *fakeAPI) setDown(down bool) {
	f.mu.Lock()
	f.refuse = down
	f.mu.Unlock()
}

func resourceOf(o runtime.Object) (resource, apiVersion, kind string) {
	switch o.(type) {
	case *corev1.Service:
		return "services", "v1", "Service"
	case *corev1.Namespace:
		return "namespaces", "v1", "Namespace"
	case *corev1.Node:
		return "nodes", "v1", "Node"
	case *corev1.ConfigMap:
		return "configmaps", "v1", "ConfigMap"
	case *discoveryv1.EndpointSlice:
		return "endpointslices", "discovery.k8s.io/v1", "EndpointSlice"
	}
	panic(fmt.Sprintf("fakeAPI does not know %T", o))
}

func kindOf(resource string) (apiVersion, kind string) {
	for _, o := range []runtime.Object{&corev1.Service{}, &corev1.Namespace{}, &corev1.Node{}, &corev1.ConfigMap{}, &discoveryv1.EndpointSlice{}} {
		if r, v, k := resourceOf(o); r == resource {
			return v, k
		}
	}
	return "", ""
}

// put creates or updates an object.
func (f *fakeAPI) put(o runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o = o.DeepCopyObject()
	resource, apiVersion, kind := resourceOf(o)
	o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	f.version++
	m, _ := meta.Accessor(o)
	m.SetResourceVersion(strconv.Itoa(f.version))
	key := m.GetNamespace() + "/" + m.GetName()
	m.SetUID(types.UID(key))
	event := "MODIFIED"
	if f.objects[resource][key] == nil {
		event = "ADDED"
	}
	if f.objects[resource] == nil {
		f.objects[resource] = map[string]runtime.Object{}
	}
	f.objects[resource][key] = o
	f.send(resource, watchEvent{event, o})
}

// remove deletes an object.
func (f *fakeAPI) remove(o runtime.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resource, _, _ := resourceOf(o)
	m, _ := meta.Accessor(o)
	key := m.GetNamespace() + "/" + m.GetName()
	old := f.objects[resource][key]
	delete(f.objects[resource], key)
	f.version++
	if old != nil {
		f.send(resource, watchEvent{"DELETED", old})
	}
}

func (f *fakeAPI) send(resource string, e watchEvent) {
	for w, of := range f.watchers {
		if of == resource {
			w <- e
		}
	}
}

func (f *fakeAPI) seenEvents() []corev1.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]corev1.Event(nil), f.events...)
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	refuse := f.refuse
	f.mu.Unlock()
	resource := path.Base(r.URL.Path)
	apiVersion, kind := kindOf(resource)
	switch {
	case refuse:
		http.Error(w, "down", http.StatusServiceUnavailable)
	case strings.Contains(r.URL.Path, "/events"):
		f.serveEvent(w, r)
	case kind == "":
		http.NotFound(w, r)
	case r.URL.Query().Get("watch") != "":
		f.serveWatch(w, r, resource, apiVersion, kind)
	default:
		f.serveList(w, resource, apiVersion, kind)
	}
}

func (f *fakeAPI) serveEvent(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	e, ok := o.(*corev1.Event)
	if err != nil || !ok {
		http.Error(w, fmt.Sprintf("not an Event: %v", err), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	f.events = append(f.events, *e)
	f.mu.Unlock()
	e.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(e)
}

func (f *fakeAPI) serveList(w http.ResponseWriter, resource, apiVersion, kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	items := []runtime.Object{}
	for _, o := range f.objects[resource] {
		items = append(items, o)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": apiVersion, "kind": kind + "List",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(f.version)}, "items": items,
	})
}

func (f *fakeAPI) serveWatch(w http.ResponseWriter, r *http.Request, resource, apiVersion, kind string) {
	ch := make(chan watchEvent, 1000)
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	f.mu.Lock()
	for _, o := range f.objects[resource] {
		m, _ := meta.Accessor(o)
		if v, _ := strconv.Atoi(m.GetResourceVersion()); initial || v > since {
			ch <- watchEvent{"ADDED", o}
		}
	}
	if initial {
		ch <- watchEvent{"BOOKMARK", &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
			ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: strconv.Itoa(f.version),
				Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			},
		}}
	}
	f.watchers[ch] = resource
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.watchers, ch)
		f.mu.Unlock()
	}()

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-ch:
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}
