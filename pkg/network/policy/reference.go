package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Decide judges one connection by what the engine was told until now, straight from
// the API objects and without any of the tables: it explains a decision and is what
// the tables are tested against. The port is ignored for protocols without ports.
//
// Pods that are not endpoints of this node are judged in the same way.
func (e *Engine) Decide(namespace, name string, d Direction, peer netip.Addr, proto uint8, port uint16) Decision {
	p := e.pods[namespace+"/"+name]
	if p == nil || p.HostNetwork {
		return Decision{true, ungoverned}
	}
	c := &connection{e: e, pod: p, dir: d, peer: plain(peer), proto: proto, port: port}
	for _, o := range e.pods {
		if o.isPeer() && slices.Contains(o.Addrs, c.peer) {
			c.peers = append(c.peers, o)
		}
	}

	governed := false
	judge := func(t v1alpha2.Tier) (Decision, bool) {
		for _, cnp := range e.clusterPolicies(t) {
			rules := clusterRules(cnp, d)
			if len(rules) == 0 || !c.isSubject(&cnp.Spec.Subject) {
				continue
			}
			governed = true
			for i, r := range rules {
				a, matches := c.clusterRule(&r)
				if !matches {
					continue
				}
				if a == pass {
					return Decision{}, false
				}
				return Decision{a == accept, ruledBy(cnp.Name, a, d, i, r.name)}, true
			}
		}
		return Decision{}, false
	}
	// A policy governs the pod also when an earlier one decides; for the answer it is
	// enough to know it of those that were looked at.
	if out, done := judge(v1alpha2.AdminTier); done {
		return out
	}
	var isolating []string
	for _, np := range byName(p.ns.specs) {
		ingress, egress := policyTypes(np)
		if d == Ingress && !ingress || d == Egress && !egress {
			continue
		}
		if sel, err := parseSelector(&np.Spec.PodSelector); err == nil && !sel.Matches(labels.Set(p.Labels)) {
			continue
		}
		isolating = append(isolating, np.Namespace+"/"+np.Name)
		if c.networkPolicyAllows(np) {
			return Decision{true, allowedBy(np.Namespace + "/" + np.Name)}
		}
	}
	if len(isolating) > 0 {
		return Decision{false, isolatedBy(isolating)}
	}
	if out, done := judge(v1alpha2.BaselineTier); done {
		return out
	}
	if governed {
		return Decision{true, unmatched}
	}
	return Decision{true, ungoverned}
}

func byName(specs map[string]*networkingv1.NetworkPolicy) (out []*networkingv1.NetworkPolicy) {
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		out = append(out, specs[name])
	}
	return out
}

func (e *Engine) clusterPolicies(t v1alpha2.Tier) (out []*v1alpha2.ClusterNetworkPolicy) {
	for _, cnp := range e.clusterSpec {
		if cnp.Spec.Tier == t {
			out = append(out, cnp)
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha2.ClusterNetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// connection is what Decide asks about.
type connection struct {
	e     *Engine
	pod   *pod
	dir   Direction
	peer  netip.Addr
	peers []*pod // at the peer's address
	proto uint8
	port  uint16
}

func (c *connection) networkPolicyAllows(np *networkingv1.NetworkPolicy) bool {
	allows := func(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) bool {
		for i := range peers {
			if _, err := parsePeer(np.Namespace, &peers[i]); err != nil {
				return false
			}
		}
		for i := range ports {
			if _, err := parsePolicyPort(&ports[i]); err != nil {
				return false
			}
		}
		return (len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool { return c.isPeer(np.Namespace, &p) })) &&
			(len(ports) == 0 || slices.ContainsFunc(ports, c.isPort))
	}
	if c.dir == Ingress {
		return slices.ContainsFunc(np.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool { return allows(r.From, r.Ports) })
	}
	return slices.ContainsFunc(np.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool { return allows(r.To, r.Ports) })
}

func (c *connection) isPeer(namespace string, p *networkingv1.NetworkPolicyPeer) bool {
	if p.IPBlock != nil {
		return c.inBlock(p.IPBlock.CIDR, p.IPBlock.Except)
	}
	return slices.ContainsFunc(c.peers, func(o *pod) bool {
		if p.NamespaceSelector == nil && o.Namespace != namespace {
			return false
		}
		return (p.NamespaceSelector == nil || selects(p.NamespaceSelector, o.ns.labels)) &&
			(p.PodSelector == nil || selects(p.PodSelector, o.Labels))
	})
}

func (c *connection) inBlock(cidr string, except []string) bool {
	in := func(s string) bool {
		p, err := parseCIDR(s)
		return err == nil && p.Contains(c.peer)
	}
	return in(cidr) && !slices.ContainsFunc(except, in)
}

func (c *connection) isPort(p networkingv1.NetworkPolicyPort) bool {
	want := corev1.ProtocolTCP
	if p.Protocol != nil {
		want = *p.Protocol
	}
	if map[corev1.Protocol]uint8{corev1.ProtocolTCP: TCP, corev1.ProtocolUDP: UDP, corev1.ProtocolSCTP: SCTP}[want] != c.proto {
		return false
	}
	switch {
	case p.Port == nil:
		return true
	case p.Port.Type == intstr.String:
		return c.isNamed(p.Port.StrVal)
	case p.EndPort != nil:
		return p.Port.IntVal <= int32(c.port) && int32(c.port) <= *p.EndPort
	}
	return p.Port.IntVal == int32(c.port)
}

// isNamed reports whether the destination has a port of this name that is the connection's.
func (c *connection) isNamed(name string) bool {
	destination := []*pod{c.pod}
	if c.dir == Egress {
		destination = c.peers
	}
	return slices.ContainsFunc(destination, func(p *pod) bool {
		return slices.Contains(p.Ports, NamedPort{name, c.proto, c.port})
	})
}

func (c *connection) isSubject(s *v1alpha2.ClusterNetworkPolicySubject) bool {
	if _, err := parsePods(s.Namespaces, s.Pods); err != nil {
		return false
	}
	return selectsPod(s.Namespaces, s.Pods, c.pod)
}

// clusterRule returns the action of the rule and whether it matches the connection.
func (c *connection) clusterRule(r *clusterRule) (action, bool) {
	if _, err := parseClusterRule(r); err != nil {
		return deny, r.action != v1alpha2.ClusterNetworkPolicyRuleActionAccept
	}
	a := map[v1alpha2.ClusterNetworkPolicyRuleAction]action{
		v1alpha2.ClusterNetworkPolicyRuleActionAccept: accept,
		v1alpha2.ClusterNetworkPolicyRuleActionDeny:   deny,
		v1alpha2.ClusterNetworkPolicyRuleActionPass:   pass,
	}[r.action]
	return a, slices.ContainsFunc(r.peers, c.isClusterPeer) &&
		(len(r.protocols) == 0 || slices.ContainsFunc(r.protocols, c.isProtocol))
}

func (c *connection) isClusterPeer(p v1alpha2.ClusterNetworkPolicyEgressPeer) bool {
	switch {
	case p.Nodes != nil:
		for _, n := range c.e.nodes {
			if selects(p.Nodes, n.labels) && slices.Contains(n.addrs, c.peer) {
				return true
			}
		}
		return false
	case len(p.Networks) > 0:
		return slices.ContainsFunc(p.Networks, func(n v1alpha2.CIDR) bool { return c.inBlock(string(n), nil) })
	}
	return slices.ContainsFunc(c.peers, func(o *pod) bool { return selectsPod(p.Namespaces, p.Pods, o) })
}

func (c *connection) isProtocol(p v1alpha2.ClusterNetworkPolicyProtocol) bool {
	in := func(proto uint8, port *v1alpha2.Port) bool {
		if proto != c.proto {
			return false
		}
		if port.Range != nil {
			return port.Range.Start <= int32(c.port) && int32(c.port) <= port.Range.End
		}
		return port.Number == int32(c.port)
	}
	switch {
	case p.TCP != nil:
		return in(TCP, p.TCP.DestinationPort)
	case p.UDP != nil:
		return in(UDP, p.UDP.DestinationPort)
	case p.SCTP != nil:
		return in(SCTP, p.SCTP.DestinationPort)
	}
	return c.isNamed(p.DestinationNamedPort)
}

func selects(s *metav1.LabelSelector, lbls map[string]string) bool {
	sel, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && sel.Matches(labels.Set(lbls))
}

func selectsPod(namespaces *metav1.LabelSelector, pods *v1alpha2.NamespacedPod, p *pod) bool {
	if pods != nil {
		return selects(&pods.NamespaceSelector, p.ns.labels) && selects(&pods.PodSelector, p.Labels)
	}
	return selects(namespaces, p.ns.labels)
}
