package policy

// The CustomResourceDefinition of ClusterNetworkPolicy comes with the module that has its types.
//
//go:generate sh -c "install -m 644 $(go list -m -f '{{.Dir}}' sigs.k8s.io/network-policy-api)/config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml ../../../manifests/crds/"
