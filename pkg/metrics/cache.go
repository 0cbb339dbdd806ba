package metrics

import (
	"context"

	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/metrics-server/pkg/scraper/client/resource"
)

// caches are the nodes and the running pods, cut down to what the API needs.
//
// They exist from the beginning, empty, because the API that reads them is
// installed before there is an API server to fill them from, and they outlive a
// restart of the component. That is why these are stores with a reflector for
// each run and not shared informers, which run only once.
type caches struct {
	nodeStore, podStore   *trimmedStore
	nodeSource, podSource cache.ListerWatcher

	nodes corelisters.NodeLister
	pods  cache.GenericLister

	// nodeAppeared gets a token, at most one at a time, when a node is new.
	nodeAppeared chan struct{}
}

func newCaches(kube kubernetes.Interface, meta metadata.Interface) *caches {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	running := fields.OneTermEqualSelector("status.phase", string(corev1.PodRunning)).String()
	c := &caches{
		nodeStore:    newTrimmedStore(trimNode),
		podStore:     newTrimmedStore(trimPod),
		nodeAppeared: make(chan struct{}, 1),
		nodeSource: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return kube.CoreV1().Nodes().List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return kube.CoreV1().Nodes().Watch(ctx, o)
			},
		}, kube),
		podSource: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = running
				return meta.Resource(pods).List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = running
				return meta.Resource(pods).Watch(ctx, o)
			},
		}, meta),
	}
	c.nodes = corelisters.NewNodeLister(c.nodeStore)
	c.pods = cache.NewGenericLister(c.podStore, pods.GroupResource())
	c.nodeStore.added = func() {
		select {
		case c.nodeAppeared <- struct{}{}:
		default:
		}
	}
	return c
}

// follow keeps the caches current until ctx is done; the returned function waits
// for the end of that.
func (c *caches) follow(ctx context.Context) (wait func()) {
	var followers sync.WaitGroup
	for _, f := range []struct {
		name   string
		source cache.ListerWatcher
		kind   any
		store  *trimmedStore
	}{
		{"metrics nodes", c.nodeSource, &corev1.Node{}, c.nodeStore},
		{"metrics pods", c.podSource, &metav1.PartialObjectMetadata{}, c.podStore},
	} {
		r := cache.NewReflectorWithOptions(f.source, f.kind, f.store, cache.ReflectorOptions{Name: f.name, TypeDescription: f.name})
		followers.Go(func() { r.RunWithContext(ctx) })
	}
	return followers.Wait
}

// waitForSync returns nil when both caches were filled once, or ctx's error.
func (c *caches) waitForSync(ctx context.Context) error {
	for _, s := range []*trimmedStore{c.nodeStore, c.podStore} {
		select {
		case <-s.synced:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (c *caches) nodeCount() int { return len(c.nodeStore.ListKeys()) }

// trimmedStore is an indexed store that cuts objects down before it keeps them.
type trimmedStore struct {
	cache.Indexer
	trim  cache.TransformFunc
	added func() // called after an object with a new key; may be nil

	once   sync.Once
	synced chan struct{} // closed once the store was filled for the first time
}

func newTrimmedStore(trim cache.TransformFunc) *trimmedStore {
	return &trimmedStore{
		Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		trim:    trim,
		synced:  make(chan struct{}),
	}
}

// Transformer implements cache.TransformingStore: the reflector also cuts down
// what it collects while it streams the first list.
func (s *trimmedStore) Transformer() cache.TransformFunc { return s.trim }

// Add implements cache.ReflectorStore.
func (s *trimmedStore) Add(obj any) error { return s.put(obj, s.Indexer.Add) }

// Update implements cache.ReflectorStore.
func (s *trimmedStore) Update(obj any) error { return s.put(obj, s.Indexer.Update) }

func (s *trimmedStore) put(obj any, to func(any) error) error {
	obj, err := s.trim(obj)
	if err != nil {
		return err
	}
	_, known, err := s.Indexer.Get(obj)
	if err != nil {
		return err
	}
	if err := to(obj); err != nil {
		return err
	}
	if !known && s.added != nil {
		s.added()
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *trimmedStore) Replace(list []any, resourceVersion string) error {
	for i := range list {
		var err error
		if list[i], err = s.trim(list[i]); err != nil {
			return err
		}
	}
	before := len(s.Indexer.ListKeys())
	if err := s.Indexer.Replace(list, resourceVersion); err != nil {
		return err
	}
	s.once.Do(func() { close(s.synced) })
	if len(list) > before && s.added != nil {
		s.added()
	}
	return nil
}

// trimNode keeps the name, the labels, the addresses, the kubelet's port and the
// Ready condition.
func trimNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, ResourceVersion: node.ResourceVersion},
		Status: corev1.NodeStatus{
			Addresses:       node.Status.Addresses,
			DaemonEndpoints: node.Status.DaemonEndpoints,
		},
	}
	if path := node.Annotations[resource.AnnotationResourceMetricsPath]; path != "" {
		trimmed.Annotations = map[string]string{resource.AnnotationResourceMetricsPath: path}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return trimmed, nil
}

// trimPod keeps the name, the namespace and the labels.
func trimPod(obj any) (any, error) {
	pod, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, ResourceVersion: pod.ResourceVersion,
	}}, nil
}

var _ cache.TransformingStore = (*trimmedStore)(nil)
