package policy

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// parseNetworkPolicy returns the policy also when there is an error: it governs its
// pods, all of the namespace if the selector is invalid, and a rule that is invalid
// in any part allows nothing.
func parseNetworkPolicy(np *networkingv1.NetworkPolicy) (*policy, error) {
	name := np.Namespace + "/" + np.Name
	f := faults{policy: "networkpolicy " + name}
	sel, err := parseSelector(&np.Spec.PodSelector)
	if !f.add(err, "spec.podSelector") {
		sel = labels.Everything()
	}
	p := &policy{name: name, tier: networkTier, subject: &podSelector{namespace: np.Namespace, sel: sel}}
	for i, t := range np.Spec.PolicyTypes {
		if t != networkingv1.PolicyTypeIngress && t != networkingv1.PolicyTypeEgress {
			f.add(fmt.Errorf("unknown type %q", t), "spec.policyTypes[%d]", i)
		}
	}
	p.governs[Ingress], p.governs[Egress] = policyTypes(np)
	for i, r := range np.Spec.Ingress {
		p.add(&f, np.Namespace, Ingress, fmt.Sprintf("spec.ingress[%d]", i), "from", r.From, r.Ports)
	}
	for i, r := range np.Spec.Egress {
		p.add(&f, np.Namespace, Egress, fmt.Sprintf("spec.egress[%d]", i), "to", r.To, r.Ports)
	}
	return p, f.err()
}

// policyTypes applies the defaults that the API server fills in.
func policyTypes(np *networkingv1.NetworkPolicy) (ingress, egress bool) {
	if len(np.Spec.PolicyTypes) == 0 {
		return true, len(np.Spec.Egress) > 0
	}
	for _, t := range np.Spec.PolicyTypes {
		ingress = ingress || t == networkingv1.PolicyTypeIngress
		egress = egress || t == networkingv1.PolicyTypeEgress
	}
	return ingress, egress
}

func (p *policy) add(f *faults, namespace string, d Direction, field, peersField string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	def := definition{action: accept, anyPeer: len(peers) == 0, anyPort: len(ports) == 0, reason: allowedBy(p.name)}
	valid := true
	for i := range peers {
		peer, err := parsePeer(namespace, &peers[i])
		if !f.add(err, "%s.%s[%d]", field, peersField, i) {
			valid = false
			continue
		}
		def.peers = append(def.peers, peer)
	}
	for i := range ports {
		m, err := parsePolicyPort(&ports[i])
		if !f.add(err, "%s.ports[%d]", field, i) {
			valid = false
			continue
		}
		def.ports = append(def.ports, m)
	}
	if valid {
		p.rules[d] = append(p.rules[d], def)
	}
}

func parsePeer(namespace string, in *networkingv1.NetworkPolicyPeer) (peer, error) {
	if in.IPBlock != nil {
		if in.PodSelector != nil || in.NamespaceSelector != nil {
			return peer{}, errors.New("ipBlock cannot be combined with selectors")
		}
		b, err := parseBlock(in.IPBlock.CIDR, in.IPBlock.Except)
		if err != nil {
			return peer{}, fmt.Errorf("ipBlock: %w", err)
		}
		return peer{block: b}, nil
	}
	if in.PodSelector == nil && in.NamespaceSelector == nil {
		return peer{}, errors.New("no peer is given")
	}
	s := &podSelector{namespace: namespace, sel: labels.Everything()}
	var err error
	if in.NamespaceSelector != nil {
		s.namespace = ""
		if s.nsSel, err = parseSelector(in.NamespaceSelector); err != nil {
			return peer{}, fmt.Errorf("namespaceSelector: %w", err)
		}
	}
	if in.PodSelector != nil {
		if s.sel, err = parseSelector(in.PodSelector); err != nil {
			return peer{}, fmt.Errorf("podSelector: %w", err)
		}
	}
	return peer{pods: s}, nil
}

func parsePolicyPort(in *networkingv1.NetworkPolicyPort) (portMatch, error) {
	proto := TCP
	if in.Protocol != nil {
		switch *in.Protocol {
		case corev1.ProtocolTCP:
		case corev1.ProtocolUDP:
			proto = UDP
		case corev1.ProtocolSCTP:
			proto = SCTP
		default:
			return portMatch{}, fmt.Errorf("unknown protocol %q", *in.Protocol)
		}
	}
	switch {
	case in.Port == nil:
		if in.EndPort != nil {
			return portMatch{}, errors.New("endPort needs a port")
		}
		return allPorts(proto), nil
	case in.Port.Type == intstr.String:
		if in.EndPort != nil {
			return portMatch{}, errors.New("endPort cannot follow a named port")
		}
		if in.Port.StrVal == "" {
			return portMatch{}, errors.New("the name of the port is empty")
		}
		return portMatch{proto: proto, name: in.Port.StrVal}, nil
	case in.EndPort != nil:
		if *in.EndPort == 0 {
			return portMatch{}, errors.New("0 is not a port")
		}
		return parsePort(proto, in.Port.IntVal, *in.EndPort)
	}
	return parsePort(proto, in.Port.IntVal, 0)
}
