package policy

import "net/netip"

// The protocols that have ports.
const (
	TCP  uint8 = 6
	UDP  uint8 = 17
	SCTP uint8 = 132
)

// Direction is seen from the pod that is governed.
type Direction uint8

// The directions; they index arrays.
const (
	Ingress Direction = iota
	Egress
)

func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// Pod is what policies can tell of a pod.
type Pod struct {
	Namespace, Name string
	// Labels must not be changed afterwards.
	Labels map[string]string
	Addrs  []netip.Addr
	// HostNetwork pods are neither governed nor peers: their addresses are the node's.
	HostNetwork bool
	// Finished pods (phase Succeeded or Failed) are no peers; another pod may have their address.
	Finished bool
	// Local pods are endpoints of this node.
	Local bool
	// Ports are the named ports of the pod's containers.
	Ports []NamedPort
}

// NamedPort is a port of a container that policies can refer to by name.
type NamedPort struct {
	Name  string
	Proto uint8
	Port  uint16
}

// EndpointSets are the policy sets that govern a local pod; 0 is none.
type EndpointSets struct{ Ingress, Egress uint32 }

// Depths of rules, in leading bits of (Set, Class, Proto, Port) that count. A rule
// for the first n bits of a port has DepthProto+n.
const (
	DepthClass uint8 = 64
	DepthProto uint8 = 72
	DepthPort  uint8 = 88
)

// RuleKey is a key of the longest-prefix table of rules. Its fields are in the order
// of the key's bits, each with the most significant bit first; those that do not
// count are 0.
type RuleKey struct {
	Set, Class uint32
	Proto      uint8
	Port       uint16
	// Depth is DepthClass or DepthProto to DepthPort.
	Depth uint8
}

// Verdict is what becomes of a connection.
type Verdict struct {
	Allow bool
	// Policy says why; see [Engine.Reason].
	Policy uint32
}

// Rule is an entry of the table of rules.
type Rule struct {
	RuleKey
	Verdict
}

// PeerChange is a write to the table of peers.
type PeerChange struct {
	Prefix netip.Prefix
	Class  uint32
	// Delete removes the prefix instead.
	Delete bool
}

// EndpointChange is a write to the table of endpoints.
type EndpointChange struct {
	// Pod is namespace/name.
	Pod  string
	Sets EndpointSets
	// Delete removes the pod instead.
	Delete bool
}

// Update is the way from the tables of the Compile before to those of this one. The
// fields are to be applied in their order, and Peers and Settle in the order of
// their elements; the others may be written in any order or as one batch.
type Update struct {
	// AddRules are all for keys that are not in the table yet.
	AddRules  []Rule
	Peers     []PeerChange
	Endpoints []EndpointChange
	// Settle takes peers from passing classes to their final ones.
	Settle      []PeerChange
	DeleteRules []RuleKey
}

// Tables are the complete tables.
type Tables struct {
	// Peers has IPv4 prefixes as such, not mapped into IPv6.
	Peers map[netip.Prefix]uint32
	// Endpoints has every local pod by namespace/name, also those that nothing governs.
	Endpoints map[string]EndpointSets
	Rules     map[RuleKey]Verdict
}

// Decision is the outcome for one connection.
type Decision struct {
	Allow bool
	// Why names the policy and rule that decided.
	Why string
}
