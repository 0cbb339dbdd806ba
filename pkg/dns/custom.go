package dns

import (
	"context"
	"log/slog"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// The ConfigMap with a user's additions, as on k3s.
const (
	customNamespace = "kube-system"
	customName      = "coredns-custom"
)

// customConfig follows the ConfigMap coredns-custom. It is the store of a
// reflector that watches this single object.
type customConfig struct {
	source cache.ListerWatcher
	// changed gets a token when the ConfigMap, or its absence, is news.
	changed chan struct{}

	mu      sync.Mutex
	current *corev1.ConfigMap
}

func newCustomConfig(client kubernetes.Interface) *customConfig {
	only := fields.OneTermEqualSelector("metadata.name", customName).String()
	maps := client.CoreV1().ConfigMaps(customNamespace)
	return &customConfig{
		changed: make(chan struct{}, 1),
		source: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = only
				return maps.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = only
				return maps.Watch(ctx, o)
			},
		}, client),
	}
}

// follow keeps the ConfigMap current until ctx is done.
func (c *customConfig) follow(ctx context.Context) {
	const name = "ConfigMap " + customName
	cache.NewReflectorWithOptions(c.source, &corev1.ConfigMap{}, c, cache.ReflectorOptions{Name: name, TypeDescription: name}).RunWithContext(ctx)
}

// get returns the ConfigMap, or nil when there is none.
func (c *customConfig) get() *corev1.ConfigMap {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

func (c *customConfig) set(cm *corev1.ConfigMap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cm == nil && c.current == nil || cm != nil && c.current != nil && cm.UID == c.current.UID && cm.ResourceVersion == c.current.ResourceVersion {
		return
	}
	c.current = cm
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Add implements cache.ReflectorStore.
func (c *customConfig) Add(obj any) error {
	if cm, ok := obj.(*corev1.ConfigMap); ok {
		c.set(cm)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (c *customConfig) Update(obj any) error { return c.Add(obj) }

// Delete implements cache.ReflectorStore.
func (c *customConfig) Delete(any) error { c.set(nil); return nil }

// Replace implements cache.ReflectorStore.
func (c *customConfig) Replace(list []any, _ string) error {
	if len(list) == 0 {
		c.set(nil)
		return nil
	}
	return c.Add(list[0])
}

// Resync implements cache.ReflectorStore.
func (c *customConfig) Resync() error { return nil }

// reporter tells the owner of coredns-custom, by Events, what is wrong with it.
type reporter struct {
	log         *slog.Logger
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

func newReporter(ctx context.Context, log *slog.Logger, client kubernetes.Interface) *reporter {
	host, _ := os.Hostname() // only says which node the Event is from
	r := &reporter{log: log, broadcaster: record.NewBroadcaster(record.WithContext(ctx))}
	r.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	r.recorder = r.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kombi-dns", Host: host})
	return r
}

// bad reports an error in cm.
func (r *reporter) bad(cm *corev1.ConfigMap, err error) {
	r.log.Warn("ConfigMap "+customNamespace+"/"+customName+" is not fully in use", "error", err)
	if cm == nil {
		return
	}
	r.recorder.Event(&corev1.ObjectReference{
		APIVersion: "v1", Kind: "ConfigMap",
		Namespace: cm.Namespace, Name: cm.Name, UID: cm.UID, ResourceVersion: cm.ResourceVersion,
	}, corev1.EventTypeWarning, "DNSConfigurationRefused", err.Error())
}

func (r *reporter) stop() { r.broadcaster.Shutdown() }
