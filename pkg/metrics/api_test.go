package metrics

import (
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // the types of discovery
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
)

// newAPIServer serves m's API as a kube-apiserver would: with the schemas and the
// codecs of Kubernetes, which know nothing of metrics.k8s.io by themselves.
func newAPIServer(t *testing.T, m *Metrics) *httptest.Server {
	t.Helper()
	config := genericapiserver.NewConfig(legacyscheme.Codecs)
	config.LoopbackClientConfig = &rest.Config{Host: "127.0.0.1:1"}
	config.EffectiveVersion = utilcompatibility.DefaultBuildEffectiveVersion()
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	config.ExternalAddress = "127.0.0.1:1"
	config.PublicAddress = net.IPv4(127, 0, 0, 1)
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	ExtendOpenAPI(config)

	server, err := config.Complete(nil).New("test", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.InstallAPI(server); err != nil {
		t.Fatal(err)
	}
	prepared := server.PrepareRun()
	s := httptest.NewServer(prepared.Handler)
	t.Cleanup(s.Close)
	return s
}

func TestDiscoveryAndSchemas(t *testing.T) {
	k := newKubelet(t)
	m, _ := newMetrics(t, k.ca(), nil)
	api := newAPIServer(t, m)

	_, resources := get(t, api.URL+"/apis/metrics.k8s.io/v1beta1")
	names := map[any]bool{}
	for _, r := range at(resources, "resources").([]any) {
		names[at(r, "name")] = true
	}
	if !names["nodes"] || !names["pods"] {
		t.Errorf("discovery: %v", resources)
	}

	if _, group := get(t, api.URL+"/apis/metrics.k8s.io"); at(group, "preferredVersion", "version") != "v1beta1" {
		t.Errorf("the group prefers a version that is not served: %v", group)
	}

	_, v2 := get(t, api.URL+"/openapi/v2")
	pod := at(v2, "definitions", "io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics")
	if at(pod, "x-kubernetes-group-version-kind", 0, "kind") != "PodMetrics" {
		t.Errorf("OpenAPI v2 has %v for PodMetrics", pod)
	}
	if at(v2, "definitions", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") == nil {
		t.Error("OpenAPI v2 lost a type of Kubernetes")
	}
	_, v3 := get(t, api.URL+"/openapi/v3/apis/metrics.k8s.io/v1beta1")
	node := at(v3, "components", "schemas", "io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetrics")
	if at(node, "x-kubernetes-group-version-kind", 0, "kind") != "NodeMetrics" || at(node, "properties", "usage") == nil {
		t.Errorf("OpenAPI v3 has %v for NodeMetrics", node)
	}
}

func TestOpenAPIDefinitionsAreOnlyOurOwn(t *testing.T) {
	own := OpenAPIDefinitions(reference("#/", openapinamer.NewDefinitionNamer(legacyscheme.Scheme).GetDefinitionName))
	if len(own) != 5 {
		t.Errorf("%d definitions", len(own))
	}
	for name, d := range own {
		if !strings.HasPrefix(name, "io.k8s.metrics.") || d.Schema.Description == "" {
			t.Errorf("%s: %v", name, d.Schema)
		}
	}
}
