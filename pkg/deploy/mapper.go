package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// errKindMissing says that the API server does not serve a kind (yet).
var errKindMissing = errors.New("the API server does not know this kind")

// mapping is how the API server calls a kind in its paths.
type mapping struct {
	plural     string
	namespaced bool
}

// mapper finds out mappings as they are needed. It remembers the kinds that the
// manifests use and nothing else: a full discovery cache is megabytes for the
// dozen kinds that matter here.
type mapper struct {
	client *client

	mu     sync.Mutex
	known  map[schema.GroupVersionKind]mapping
	recent map[schema.GroupVersion]*recentList // until forget
}

// recentList is the answer for one group and version, fetched once however many
// documents ask at the same time.
type recentList struct {
	once sync.Once
	list metav1.APIResourceList
	err  error
}

func newMapper(c *client) *mapper {
	return &mapper{
		client: c,
		known:  make(map[schema.GroupVersionKind]mapping),
		recent: make(map[schema.GroupVersion]*recentList),
	}
}

// lookup returns the mapping of gvk. The error wraps errKindMissing when the API
// server says that there is no such kind, and is another when it cannot say.
func (m *mapper) lookup(ctx context.Context, gvk schema.GroupVersionKind) (mapping, error) {
	m.mu.Lock()
	found, ok := m.known[gvk]
	recent := m.recent[gvk.GroupVersion()]
	if !ok && recent == nil {
		recent = &recentList{}
		m.recent[gvk.GroupVersion()] = recent
	}
	m.mu.Unlock()
	if ok {
		return found, nil
	}

	recent.once.Do(func() {
		r := m.client.rest.Verb(http.MethodGet).MaxRetries(0).AbsPath(groupVersionPath(gvk.GroupVersion()))
		recent.err = into(ctx, r, &recent.list)
	})
	switch {
	case apierrors.IsNotFound(recent.err):
		return mapping{}, fmt.Errorf("%w: there is no API %s", errKindMissing, gvk.GroupVersion())
	case recent.err != nil:
		m.drop(gvk.GroupVersion(), recent) // the next lookup asks again
		return mapping{}, fmt.Errorf("the kinds of %s cannot be listed: %w", gvk.GroupVersion(), recent.err)
	}
	for _, r := range recent.list.APIResources {
		// A name with a slash is a subresource, which may share its parent's kind.
		if r.Kind == gvk.Kind && !containsSlash(r.Name) {
			found := mapping{plural: r.Name, namespaced: r.Namespaced}
			m.learn(gvk, found)
			return found, nil
		}
	}
	return mapping{}, fmt.Errorf("%w: %s has no kind %s", errKindMissing, gvk.GroupVersion(), gvk.Kind)
}

// learn remembers a mapping that is known from elsewhere, such as from a CRD
// that has just been applied.
func (m *mapper) learn(gvk schema.GroupVersionKind, found mapping) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[gvk] = found
}

// unlearn drops what is known about gvk, which turned out to be out of date.
func (m *mapper) unlearn(gvk schema.GroupVersionKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, gvk)
}

func (m *mapper) drop(gv schema.GroupVersion, stale *recentList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.recent[gv] == stale {
		delete(m.recent, gv)
	}
}

// forget drops the lists that were fetched; lookups ask the API server again.
func (m *mapper) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recent = make(map[schema.GroupVersion]*recentList)
}

func containsSlash(s string) bool {
	for i := range len(s) {
		if s[i] == '/' {
			return true
		}
	}
	return false
}
