package controlplane

import (
	"fmt"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// chain is the head of the assembled servers.
type chain struct {
	*aggregatorapiserver.APIAggregator
	documents *documents
}

// assemble builds the servers of the API and links them by delegation.
func assemble(opts options.CompletedOptions, stores *stores, own APIServerOptions) (*chain, error) {
	inProcess, log := own.InProcess, own.Log
	config, err := app.NewConfig(opts)
	if err != nil {
		return nil, err
	}
	generic := config.KubeAPIs.ControlPlane.Generic
	for _, server := range []*genericapiserver.Config{generic, &config.ApiExtensions.GenericConfig.Config, &config.Aggregator.GenericConfig.Config} {
		server.RESTOptionsGetter = stores.under(server.RESTOptionsGetter)
	}
	crdGetter := &config.ApiExtensions.ExtraConfig.CRDRESTOptionsGetter
	*crdGetter = stores.under(*crdGetter)
	for _, api := range inProcess {
		api.ExtendOpenAPI(generic)
	}
	generic.SkipOpenAPIInstallation = true // see documents
	if own.Front != nil {
		head := &config.Aggregator.GenericConfig.Config
		behind := head.BuildHandlerChainFunc
		head.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
			return own.Front(behind(handler, c))
		}
	}
	completed, err := config.Complete()
	if err != nil {
		return nil, err
	}

	notFound := notfoundhandler.New(generic.Serializer, genericapifilters.NoMuxAndDiscoveryIncompleteKey)
	extensions, err := completed.ApiExtensions.New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
	if err != nil {
		return nil, err
	}
	crds := completed.ApiExtensions.GenericConfig.MergedResourceConfig.ResourceEnabled(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))

	kube, err := completed.KubeAPIs.New(extensions.GenericAPIServer)
	if err != nil {
		return nil, err
	}
	priorities := builtinPriorities()
	for _, api := range inProcess {
		if err := api.Install(kube.ControlPlane.GenericAPIServer); err != nil {
			return nil, fmt.Errorf("cannot serve %s: %w", api.GroupVersion, err)
		}
		priorities[api.GroupVersion] = api.Priority
	}
	documents, err := serveDocuments(kube.ControlPlane.GenericAPIServer, generic, log)
	if err != nil {
		return nil, err
	}
	head, err := controlplaneapiserver.CreateAggregatorServer(completed.Aggregator, kube.ControlPlane.GenericAPIServer,
		extensions.Informers.Apiextensions().V1().CustomResourceDefinitions(), crds, priorities)
	return &chain{APIAggregator: head, documents: documents}, err
}

// builtinPriorities orders the API groups of Kubernetes in discovery. Upstream
// keeps the second half of the list to itself, so it is stated here: group
// priorities fall in steps of 100, stable versions come before others.
func builtinPriorities() map[schema.GroupVersion]controlplaneapiserver.APIServicePriority {
	all := controlplaneapiserver.DefaultGenericAPIServicePriorities()
	for group, priority := range map[string]int32{
		"apps": 17800, "autoscaling": 17500, "batch": 17400, "networking.k8s.io": 17200, "policy": 17100,
		"storage.k8s.io": 16800, "scheduling.k8s.io": 16600, "node.k8s.io": 16300, "resource.k8s.io": 16200,
		"lifecycle.k8s.io": 15700,
	} {
		for version, within := range map[string]int32{"v2": 30, "v1": 21, "v1beta2": 15, "v1beta1": 9, "v1alpha3": 3, "v1alpha2": 2, "v1alpha1": 1} {
			all[schema.GroupVersion{Group: group, Version: version}] = controlplaneapiserver.APIServicePriority{Group: priority, Version: within}
		}
	}
	return all
}
