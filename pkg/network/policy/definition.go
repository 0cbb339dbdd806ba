package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// tier orders policies; it indexes arrays.
type tier uint8

const (
	adminTier tier = iota
	networkTier
	baselineTier
)

type action uint8

const (
	accept action = iota
	deny
	pass
)

// policy is a policy of either kind, parsed.
type policy struct {
	// rev differs between any two specs, so that it stands for the content.
	rev uint64
	// name is namespace/name or the cluster policy's name.
	name     string
	tier     tier
	priority int32
	// subject is nil if the policy governs no pod.
	subject *podSelector
	governs [2]bool
	rules   [2][]definition
}

// definition is a rule of a policy.
type definition struct {
	action action
	// anyPeer and anyPort stand for a rule that does not restrict them; a rule
	// without them and without peers or ports matches nothing.
	anyPeer bool
	peers   []peer
	anyPort bool
	ports   []portMatch
	reason  string
}

// portMatch is a range of ports of a protocol, or a named port.
type portMatch struct {
	// proto is 0 for a named port of any protocol.
	proto uint8
	name  string
	// lo and hi are both included.
	lo, hi uint16
}

func (m portMatch) names(p NamedPort) bool {
	return m.name == p.Name && (m.proto == 0 || m.proto == p.Proto)
}

// podSelector selects pods of one namespace, or of those that nsSel selects.
type podSelector struct {
	namespace string
	nsSel     labels.Selector // nil: only namespace
	sel       labels.Selector
}

func (s *podSelector) matches(p *pod) bool {
	if s.nsSel == nil && s.namespace != p.Namespace || s.nsSel != nil && !s.nsSel.Matches(p.ns.labels) {
		return false
	}
	return s.sel.Matches(labels.Set(p.Labels))
}

// peer is one thing that a rule may ask of a peer's address: that it is a pod's or
// a node's that is selected, or in a block. Exactly one of its fields is set.
type peer struct {
	pods  *podSelector
	nodes labels.Selector
	block *block
}

// block is cidr without except.
type block struct {
	cidr   netip.Prefix
	except []netip.Prefix
}

// contains reports whether p is in the block; p must not reach across its edges.
func (b *block) contains(p netip.Prefix) bool {
	if p.Addr().Is4() != b.cidr.Addr().Is4() || !covers(b.cidr, p) {
		return false
	}
	return !slices.ContainsFunc(b.except, func(x netip.Prefix) bool { return covers(x, p) })
}

// key is equal for peers that match alike. It is not for all of those, but
// policies are commonly written alike.
func (p peer) key() string {
	switch {
	case p.block != nil:
		return fmt.Sprintf("block %s %s", p.block.cidr, p.block.except)
	case p.nodes != nil:
		return "nodes " + p.nodes.String()
	case p.pods.nsSel == nil:
		return "pods in " + p.pods.namespace + ": " + p.pods.sel.String()
	}
	return "pods of " + p.pods.nsSel.String() + ": " + p.pods.sel.String()
}

// parseBlock returns the block in a canonical form.
func parseBlock(cidr string, except []string) (*block, error) {
	var b block
	var err error
	if b.cidr, err = parseCIDR(cidr); err != nil {
		return nil, err
	}
	for _, s := range except {
		x, err := parseCIDR(s)
		if err != nil {
			return nil, fmt.Errorf("except: %w", err)
		}
		// One that is as large as the block or larger leaves nothing of it.
		if x.Addr().Is4() == b.cidr.Addr().Is4() && x.Overlaps(b.cidr) {
			b.except = append(b.except, x)
		}
	}
	slices.SortFunc(b.except, netip.Prefix.Compare)
	b.except = slices.Compact(b.except)
	return &b, nil
}

// parsePort checks a range of ports; hi is 0 for a single one.
func parsePort(proto uint8, lo, hi int32) (portMatch, error) {
	if hi == 0 {
		hi = lo
	}
	if lo < 1 || lo > 65535 || hi < lo || hi > 65535 {
		return portMatch{}, fmt.Errorf("%d to %d is not a range of ports", lo, hi)
	}
	return portMatch{proto: proto, lo: uint16(lo), hi: uint16(hi)}, nil
}

func allPorts(proto uint8) portMatch { return portMatch{proto: proto, hi: 65535} }

func parseSelector(s *metav1.LabelSelector) (labels.Selector, error) {
	return metav1.LabelSelectorAsSelector(s)
}

// faults collects what is wrong with a policy.
type faults struct {
	policy string
	errs   []error
}

// add notes the error, if there is one, and reports whether there is none.
func (f *faults) add(err error, field string, args ...any) bool {
	if err == nil {
		return true
	}
	f.errs = append(f.errs, fmt.Errorf("%s: %s: %w", f.policy, fmt.Sprintf(field, args...), err))
	return false
}

func (f *faults) err() error { return errors.Join(f.errs...) }

// Why a connection is allowed or denied, in the words that users see.
const (
	ungoverned = "allowed: no policy selects the pod for this direction"
	unmatched  = "allowed by default: no rule matches"
)

func allowedBy(np string) string { return "allowed by NetworkPolicy " + np }

func isolatedBy(nps []string) string {
	s := "denied by default deny of NetworkPolicy " + nps[0]
	if n := len(nps) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

func ruledBy(cnp string, a action, d Direction, index int, name string) string {
	verb := "allowed"
	if a == deny {
		verb = "denied"
	}
	s := fmt.Sprintf("%s by ClusterNetworkPolicy %s %s rule %d", verb, cnp, d, index+1)
	if name != "" {
		s += " (" + strings.ToValidUTF8(name, "?") + ")"
	}
	return s
}
