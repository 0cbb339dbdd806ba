package controlplane

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
)

// stores makes the API's stores on clients of the datastore in this process.
// Upstream's own way is a connection for each resource.
type stores struct {
	newClient func() *kubernetes.Client
	compactor etcd3.Compactor
	// cached says whether a resource of Kubernetes has a watch cache.
	cached func(schema.GroupResource) bool
}

// newStores starts the datastore's compaction; it ends with ctx.
func newStores(ctx context.Context, newClient func() *kubernetes.Client, opts *options.EtcdOptions) (*stores, error) {
	sizes, err := options.ParseWatchCacheSizes(opts.WatchCacheSizes)
	if err != nil {
		return nil, err
	}
	client := newClient()
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(ctx, inProcess{client.Client}, storage.RequestWatchProgress)
	s := &stores{newClient: newClient, cached: func(resource schema.GroupResource) bool {
		if size, named := sizes[resource]; named {
			return opts.EnableWatchCache && size > 0
		}
		return opts.EnableWatchCache && !seldomWatched[resource.String()]
	}}
	if interval := opts.StorageConfig.CompactionInterval; interval > 0 {
		compactor := etcd3.StartCompactorPerEndpoint(client.Client, interval)
		context.AfterFunc(ctx, compactor.Stop)
		s.compactor = compactor
	}
	return s, nil
}

// seldomWatched are the resources of Kubernetes that a cluster has few of and
// that few clients watch, mostly the controllers of this process. Their watches
// go to the datastore. A watch cache costs some twelve goroutines, a timer that
// fires every second and a second copy of the objects, which pays when many
// nodes and operators watch a resource. --watch-cache-sizes goes before this.
var seldomWatched = map[string]bool{
	"controllerrevisions.apps":                                       true,
	"cronjobs.batch":                                                 true,
	"csidrivers.storage.k8s.io":                                      true,
	"csistoragecapacities.storage.k8s.io":                            true,
	"certificatesigningrequests.certificates.k8s.io":                 true,
	"clusterrolebindings.rbac.authorization.k8s.io":                  true,
	"clusterroles.rbac.authorization.k8s.io":                         true,
	"clustertrustbundles.certificates.k8s.io":                        true,
	"customresourcedefinitions.apiextensions.k8s.io":                 true,
	"deviceclasses.resource.k8s.io":                                  true,
	"devicetaintrules.resource.k8s.io":                               true,
	"flowschemas.flowcontrol.apiserver.k8s.io":                       true,
	"horizontalpodautoscalers.autoscaling":                           true,
	"ingressclasses.networking.k8s.io":                               true,
	"ipaddresses.networking.k8s.io":                                  true,
	"limitranges":                                                    true,
	"mutatingadmissionpolicies.admissionregistration.k8s.io":         true,
	"mutatingadmissionpolicybindings.admissionregistration.k8s.io":   true,
	"mutatingwebhookconfigurations.admissionregistration.k8s.io":     true,
	"apiservices.apiregistration.k8s.io":                             true,
	"podcertificaterequests.certificates.k8s.io":                     true,
	"poddisruptionbudgets.policy":                                    true,
	"podtemplates":                                                   true,
	"priorityclasses.scheduling.k8s.io":                              true,
	"prioritylevelconfigurations.flowcontrol.apiserver.k8s.io":       true,
	"replicationcontrollers":                                         true,
	"resourceclaims.resource.k8s.io":                                 true,
	"resourceclaimtemplates.resource.k8s.io":                         true,
	"resourcequotas":                                                 true,
	"resourceslices.resource.k8s.io":                                 true,
	"rolebindings.rbac.authorization.k8s.io":                         true,
	"roles.rbac.authorization.k8s.io":                                true,
	"runtimeclasses.node.k8s.io":                                     true,
	"servicecidrs.networking.k8s.io":                                 true,
	"storageclasses.storage.k8s.io":                                  true,
	"storageversionmigrations.storagemigration.k8s.io":               true,
	"validatingadmissionpolicies.admissionregistration.k8s.io":       true,
	"validatingadmissionpolicybindings.admissionregistration.k8s.io": true,
	"validatingwebhookconfigurations.admissionregistration.k8s.io":   true,
	"volumeattachments.storage.k8s.io":                               true,
	"volumeattributesclasses.storage.k8s.io":                         true,
}

// inProcess gives a client without a connection the one endpoint that the check
// of the datastore's features asks for.
type inProcess struct{ *clientv3.Client }

// Endpoints names it.
func (inProcess) Endpoints() []string { return []string{"in-process"} }

// under returns a getter whose stores are made here.
func (s *stores) under(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return restOptions{getter, s}
}

// restOptions implements generic.RESTOptionsGetter.
type restOptions struct {
	generic.RESTOptionsGetter
	stores *stores
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (r restOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := r.RESTOptionsGetter.GetRESTOptions(resource, example)
	opts.Decorator = r.stores.raw
	if r.stores.cached(resource) {
		opts.Decorator = r.stores.withCache
	}
	return opts, err
}

// raw implements generic.StorageDecorator: the store of one resource.
func (s *stores) raw(config *storagebackend.ConfigForResource, resourcePrefix string, _ func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	client := s.newClient()
	client.KV = etcd3.NewETCDLatencyTracker(client.KV)
	transformer := config.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := storage.APIObjectVersioner{}
	decoder := etcd3.NewDefaultDecoder(config.Codec, versioner)
	unsafeDeletion := utilfeature.DefaultFeatureGate.Enabled(genericfeatures.AllowUnsafeMalformedObjectDeletion)
	if unsafeDeletion {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	store, err := etcd3.New(client, s.compactor, config.Codec, newFunc, newListFunc, config.Prefix, resourcePrefix,
		config.GroupResource, transformer, config.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		return nil, nil, err
	}
	destroy := sync.OnceFunc(func() {
		store.Close()
		_ = client.Close()
	})
	if unsafeDeletion {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(store, config.GroupResource), destroy, nil
	}
	return store, destroy, nil
}

// withCache implements generic.StorageDecorator: the same behind a watch cache.
func (s *stores) withCache(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	store, destroyStore, err := s.raw(config, resourcePrefix, keyFunc, newFunc, newListFunc, attributes, triggers, indexers)
	if err != nil {
		return nil, nil, err
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, Codec: config.Codec,
		GroupResource: config.GroupResource, EventsHistoryWindow: config.EventsHistoryWindow, ResourcePrefix: resourcePrefix,
		KeyFunc: keyFunc, NewFunc: newFunc, NewListFunc: newListFunc,
		GetAttrsFunc: attributes, IndexerFuncs: triggers, Indexers: indexers,
	})
	if err != nil {
		destroyStore()
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(cached, store)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		cached.Stop()
		destroyStore()
	}), nil
}
