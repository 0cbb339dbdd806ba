// Package v1 holds the types of Kombi's own API group, kombi.dev/v1.
//
// It contains types only: no client, no behaviour, no dependency beyond
// apimachinery, so that any program may import it.
//
// +kubebuilder:object:generate=true
// +groupName=kombi.dev
package v1

// The deep-copy functions and the CustomResourceDefinition are generated and
// committed; building needs no generator.
//
//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object crd paths=. output:crd:dir=../../../../manifests/crds
