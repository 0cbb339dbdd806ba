// Package supervisor is how machines become nodes of a cluster: a server hands out
// certificates over its API's port to whoever has the token, and a joining machine
// makes its own keys and keeps what it is given. It owns no files but those of the
// folder that it is told to keep an identity in.
package supervisor

import "net/netip"

// Paths of the join API, on the port of the API server.
const (
	prefix    = "/kombi/v1/"
	joinPath  = prefix + "join"
	caPath    = prefix + "ca"
	maxAnswer = 1 << 20
	maxAsk    = 64 << 10
)

// Identities of a node. Each has a key of its own, which never leaves the machine.
const (
	// KubeletClient is the node itself towards the API, KubeletServing what the
	// kubelet shows to the API server.
	KubeletClient  = "kubelet"
	KubeletServing = "kubelet-serving"
	// Network, DNS and Storage are the parts of the node that have RBAC of their own.
	Network = "network"
	DNS     = "dns"
	Storage = "storage"
)

// joinRequest is what a machine sends.
type joinRequest struct {
	// NodeName is the name under which it wants to be a node.
	NodeName string `json:"nodeName"`
	// Addresses are those by which others reach it.
	Addresses []netip.Addr `json:"addresses"`
	// Version of the program.
	Version string `json:"version"`
	// Requests are certificate requests (PKCS #10, DER) by identity. Only their keys
	// count; the server decides about names and uses.
	Requests map[string][]byte `json:"requests"`
}

// joinAnswer is what it gets.
type joinAnswer struct {
	// ClientCA verifies the API server when it calls the kubelet, PEM.
	ClientCA []byte `json:"clientCA"`
	// Certificates by identity, PEM.
	Certificates map[string][]byte `json:"certificates"`
	Cluster      Cluster           `json:"cluster"`
}

// Cluster is what all nodes of a cluster have in common.
type Cluster struct {
	ClusterCIDRs  []netip.Prefix `json:"clusterCIDRs"`
	ServiceCIDRs  []netip.Prefix `json:"serviceCIDRs"`
	ClusterDNS    []netip.Addr   `json:"clusterDNS"`
	ClusterDomain string         `json:"clusterDomain"`
	NodePorts     string         `json:"nodePorts"`
}

// refusal is the body of an answer that is not 200.
type refusal struct {
	Reason string `json:"reason"`
}
