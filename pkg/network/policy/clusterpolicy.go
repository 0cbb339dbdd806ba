package policy

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// clusterRule is a rule of either direction; ingress peers have only some of the fields.
type clusterRule struct {
	name      string
	field     string // that has the peers
	action    v1alpha2.ClusterNetworkPolicyRuleAction
	peers     []v1alpha2.ClusterNetworkPolicyEgressPeer
	protocols []v1alpha2.ClusterNetworkPolicyProtocol
}

func clusterRules(cnp *v1alpha2.ClusterNetworkPolicy, d Direction) (out []clusterRule) {
	if d == Egress {
		for _, r := range cnp.Spec.Egress {
			out = append(out, clusterRule{r.Name, "to", r.Action, r.To, r.Protocols})
		}
		return out
	}
	for _, r := range cnp.Spec.Ingress {
		c := clusterRule{name: r.Name, field: "from", action: r.Action, protocols: r.Protocols}
		for _, p := range r.From {
			c.peers = append(c.peers, v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
		}
		out = append(out, c)
	}
	return out
}

// parseClusterPolicy returns the policy also when there is an error. A rule that is
// invalid in any part, or has a peer of a kind that is not known, fails closed as the
// API defines it: it matches nothing if it would accept, and else denies everything.
// A policy with an invalid subject or tier governs nothing, since nobody can know
// which pods were meant and all of them would be the whole cluster.
func parseClusterPolicy(cnp *v1alpha2.ClusterNetworkPolicy) (*policy, error) {
	f := faults{policy: "clusternetworkpolicy " + cnp.Name}
	p := &policy{name: cnp.Name, priority: cnp.Spec.Priority}
	var err error
	p.subject, err = parsePods(cnp.Spec.Subject.Namespaces, cnp.Spec.Subject.Pods)
	f.add(err, "spec.subject")
	switch cnp.Spec.Tier {
	case v1alpha2.AdminTier:
		p.tier = adminTier
	case v1alpha2.BaselineTier:
		p.tier = baselineTier
	default:
		f.add(fmt.Errorf("unknown tier %q", cnp.Spec.Tier), "spec.tier")
		p.subject = nil
	}
	for _, d := range []Direction{Ingress, Egress} {
		for i, r := range clusterRules(cnp, d) {
			p.governs[d] = true
			def, err := parseClusterRule(&r)
			if !f.add(err, "spec.%s[%d]", d, i) {
				if r.action == v1alpha2.ClusterNetworkPolicyRuleActionAccept {
					continue
				}
				def = definition{action: deny, anyPeer: true, anyPort: true}
			}
			def.reason = ruledBy(p.name, def.action, d, i, r.name)
			p.rules[d] = append(p.rules[d], def)
		}
	}
	return p, f.err()
}

func parseClusterRule(r *clusterRule) (definition, error) {
	def := definition{anyPort: len(r.protocols) == 0}
	switch r.action {
	case v1alpha2.ClusterNetworkPolicyRuleActionAccept:
		def.action = accept
	case v1alpha2.ClusterNetworkPolicyRuleActionDeny:
		def.action = deny
	case v1alpha2.ClusterNetworkPolicyRuleActionPass:
		def.action = pass
	default:
		return def, fmt.Errorf("unknown action %q", r.action)
	}
	if len(r.peers) == 0 {
		return def, fmt.Errorf("%s: no peer is given", r.field)
	}
	for i := range r.peers {
		peers, err := parseClusterPeer(&r.peers[i])
		if err != nil {
			return def, fmt.Errorf("%s[%d]: %w", r.field, i, err)
		}
		def.peers = append(def.peers, peers...)
	}
	for i := range r.protocols {
		m, err := parseClusterProtocol(&r.protocols[i])
		if err != nil {
			return def, fmt.Errorf("protocols[%d]: %w", i, err)
		}
		def.ports = append(def.ports, m)
	}
	return def, nil
}

// parseClusterPeer returns several peers for several networks. Domain names, an
// experimental part of the API, are not supported.
func parseClusterPeer(in *v1alpha2.ClusterNetworkPolicyEgressPeer) ([]peer, error) {
	if len(in.DomainNames) > 0 {
		return nil, errors.New("domainNames are not supported")
	}
	given := 0
	for _, set := range []bool{in.Namespaces != nil, in.Pods != nil, in.Nodes != nil, len(in.Networks) > 0} {
		if set {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, errors.New("exactly one known kind of peer must be given")
	case in.Nodes != nil:
		sel, err := parseSelector(in.Nodes)
		if err != nil {
			return nil, fmt.Errorf("nodes: %w", err)
		}
		return []peer{{nodes: sel}}, nil
	case len(in.Networks) > 0:
		var out []peer
		for i, n := range in.Networks {
			b, err := parseBlock(string(n), nil)
			if err != nil {
				return nil, fmt.Errorf("networks[%d]: %w", i, err)
			}
			out = append(out, peer{block: b})
		}
		return out, nil
	}
	s, err := parsePods(in.Namespaces, in.Pods)
	return []peer{{pods: s}}, err
}

// parsePods reads what subjects and peers have in common; exactly one must be given.
func parsePods(namespaces *metav1.LabelSelector, pods *v1alpha2.NamespacedPod) (*podSelector, error) {
	if (namespaces == nil) == (pods == nil) {
		return nil, errors.New("exactly one of namespaces and pods must be given")
	}
	s := &podSelector{sel: labels.Everything()}
	var err error
	if pods != nil {
		namespaces = &pods.NamespaceSelector
		if s.sel, err = parseSelector(&pods.PodSelector); err != nil {
			return nil, fmt.Errorf("pods.podSelector: %w", err)
		}
	}
	if s.nsSel, err = parseSelector(namespaces); err != nil {
		return nil, fmt.Errorf("namespace selector: %w", err)
	}
	return s, nil
}

func parseClusterProtocol(in *v1alpha2.ClusterNetworkPolicyProtocol) (portMatch, error) {
	var out []portMatch
	var errs []error
	add := func(proto uint8, p *v1alpha2.Port) {
		m, err := parseClusterPort(proto, p)
		out, errs = append(out, m), append(errs, err)
	}
	if in.TCP != nil {
		add(TCP, in.TCP.DestinationPort)
	}
	if in.UDP != nil {
		add(UDP, in.UDP.DestinationPort)
	}
	if in.SCTP != nil {
		add(SCTP, in.SCTP.DestinationPort)
	}
	if in.DestinationNamedPort != "" {
		out = append(out, portMatch{name: in.DestinationNamedPort})
	}
	if len(out) != 1 {
		return portMatch{}, errors.New("exactly one known protocol or named port must be given")
	}
	return out[0], errors.Join(errs...)
}

func parseClusterPort(proto uint8, p *v1alpha2.Port) (portMatch, error) {
	switch {
	case p == nil:
		// Only an attribute that is not known here can have been meant: the API
		// requires one.
		return portMatch{}, errors.New("no known attribute of the protocol is given")
	case p.Range == nil:
		return parsePort(proto, p.Number, 0)
	case p.Number != 0:
		return portMatch{}, errors.New("number and range cannot be combined")
	case p.Range.End == 0:
		return portMatch{}, errors.New("0 is not a port")
	}
	return parsePort(proto, p.Range.Start, p.Range.End)
}
