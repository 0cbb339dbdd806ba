package metrics

import (
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"sigs.k8s.io/metrics-server/pkg/api"
	"sigs.k8s.io/metrics-server/pkg/api/generated/openapi"
	"sigs.k8s.io/metrics-server/pkg/storage"
)

// The place of the group in discovery; the values that metrics-server's own
// APIService has.
const (
	GroupPriority   = 100
	VersionPriority = 100
)

// GroupVersion is the API that [Metrics.InstallAPI] adds.
func GroupVersion() schema.GroupVersion { return v1beta1.SchemeGroupVersion }

// Scheme knows the types of the API.
func Scheme() *runtime.Scheme { return api.Scheme }

// InstallAPI adds metrics.k8s.io/v1beta1 to s. It must be called before s is
// prepared. Until the component runs and has two points of a node or container,
// lists are empty and a get is answered with 404.
//
// In the chain of a kube-apiserver (k8s.io/kubernetes/cmd/kube-apiserver/app) the
// caller does four things:
//
//	config, err := app.NewConfig(options)
//	metrics.ExtendOpenAPI(config.KubeAPIs.ControlPlane.Generic) // 1: before Complete
//	completed, err := config.Complete()
//	// CreateServerChain, spelled out:
//	extensions, err := completed.ApiExtensions.New(…)
//	kube, err := completed.KubeAPIs.New(extensions.GenericAPIServer)
//	m.InstallAPI(kube.ControlPlane.GenericAPIServer)            // 2: before the aggregator
//	priorities[metrics.GroupVersion()] = controlplaneapiserver.APIServicePriority{
//	        Group: metrics.GroupPriority, Version: metrics.VersionPriority} // 3
//	aggregator, err := controlplaneapiserver.CreateAggregatorServer(…, priorities) // 4
//
// With the priority present the aggregator registers the APIService
// v1beta1.metrics.k8s.io as a local one, which makes the group appear in
// discovery, and serves it from the kube-apiserver's own handlers: no port, no
// certificate and no Service. Authorization is the ordinary RBAC of the chain.
func (m *Metrics) InstallAPI(s *genericapiserver.GenericAPIServer) error {
	// metrics-server's scheme prefers v1, which metrics-server does not serve yet.
	if err := api.Scheme.SetVersionPriority(v1beta1.SchemeGroupVersion); err != nil {
		return fmt.Errorf("install metrics.k8s.io on the API server: %w", err)
	}
	if err := api.Install(m.store, m.caches.pods, m.caches.nodes, s, nil); err != nil {
		return fmt.Errorf("install metrics.k8s.io on the API server: %w", err)
	}
	return nil
}

// OpenAPIDefinitions returns the schemas of the API's own types, without those
// of the Kubernetes types that they are made of. Every API server that serves
// the group has to know them.
func OpenAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := openapi.GetOpenAPIDefinitions(ref)
	own := make(map[string]common.OpenAPIDefinition, 5)
	for _, name := range []string{
		v1beta1.ContainerMetrics{}.OpenAPIModelName(),
		v1beta1.NodeMetrics{}.OpenAPIModelName(),
		v1beta1.NodeMetricsList{}.OpenAPIModelName(),
		v1beta1.PodMetrics{}.OpenAPIModelName(),
		v1beta1.PodMetricsList{}.OpenAPIModelName(),
	} {
		own[name] = all[name]
	}
	return own
}

// ExtendOpenAPI adds [OpenAPIDefinitions] and the names and kinds of the API's
// types to the OpenAPI configuration of a server. It must be called before the
// configuration is completed; copies made of the configuration before the call
// share the change, as they share the pointers.
func ExtendOpenAPI(c *genericapiserver.Config) {
	own := openapinamer.NewDefinitionNamer(api.Scheme)
	named := func(others func(string) (string, spec.Extensions)) func(string) (string, spec.Extensions) {
		mine := OpenAPIDefinitions(func(string) spec.Ref { return spec.Ref{} })
		return func(name string) (string, spec.Extensions) {
			if _, ok := mine[name]; ok {
				return own.GetDefinitionName(name)
			}
			return others(name)
		}
	}
	merged := func(others common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
		return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
			all := others(ref)
			maps.Copy(all, OpenAPIDefinitions(ref))
			return all
		}
	}
	if v2 := c.OpenAPIConfig; v2 != nil {
		v2.GetDefinitions = merged(v2.GetDefinitions)
		v2.GetDefinitionName = named(v2.GetDefinitionName)
		if v2.Definitions != nil {
			maps.Copy(v2.Definitions, OpenAPIDefinitions(reference("#/definitions/", v2.GetDefinitionName)))
		}
	}
	if v3 := c.OpenAPIV3Config; v3 != nil {
		v3.GetDefinitions = merged(v3.GetDefinitions)
		v3.GetDefinitionName = named(v3.GetDefinitionName)
		if v3.Definitions != nil {
			maps.Copy(v3.Definitions, OpenAPIDefinitions(reference("#/components/schemas/", v3.GetDefinitionName)))
		}
	}
}

func reference(prefix string, name func(string) (string, spec.Extensions)) common.ReferenceCallback {
	return func(typeName string) spec.Ref {
		n, _ := name(typeName)
		return spec.MustCreateRef(prefix + common.EscapeJsonPointer(n))
	}
}

// registerSelfMetrics exposes metrics-server's own counters with those of the
// other parts of Kubernetes. The registry is the process's, so once is enough.
var registerSelfMetrics = sync.OnceFunc(func() {
	register := func(r basemetrics.Registerable) error { return legacyregistry.Register(r) }
	// The only possible error is that the name is taken; then the figures are
	// there already.
	_ = api.RegisterAPIMetrics(register)
	_ = storage.RegisterStorageMetrics(register)
})
