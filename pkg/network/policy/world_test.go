package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// world makes random objects and changes, in ranges so small that they meet.
type world struct {
	*rand.Rand
	e *Engine
	// hostile also makes objects that the API server would refuse.
	hostile bool
}

func pick[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

func some[T any](w *world, max int, make func() T) (out []T) {
	for range w.IntN(max + 1) {
		out = append(out, make())
	}
	return out
}

func ptr[T any](v T) *T { return &v }

func (w *world) one(in int) bool { return w.IntN(in) == 0 }

// bad is whether to make something invalid now.
func (w *world) bad() bool { return w.hostile && w.one(12) }

func (w *world) labels() map[string]string {
	out := map[string]string{}
	for _, k := range []string{"a", "b"} {
		if !w.one(3) {
			out[k] = pick(w, "x", "y")
		}
	}
	return out
}

func (w *world) namespace() string { return pick(w, "n1", "n2", "n3") }

var worldAddrs = func() (out []netip.Addr) {
	for i := range 8 {
		out = append(out, netip.AddrFrom4([4]byte{10, 0, byte(i % 2), byte(i)}))
	}
	for _, s := range []string{"192.0.2.1", "198.51.100.7", "fd00::1", "fd00::2", "fd00::1:1", "2001:db8::1", "::1", "0.0.0.1"} {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}()

func (w *world) cidr() string {
	if w.bad() {
		return pick(w, "", "10.0.0.0/33", "10.0.0/8", "x", "fd00::%eth0/64", "10.0.0.5/8", "::ffff:10.0.0.0/100", "::ffff:0:0/90")
	}
	return pick(w, "0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.1.0/24", "10.0.0.0/30", "10.0.0.2/32", "10.0.1.1/32",
		"192.0.2.0/24", "192.0.2.1/32", "::/0", "fd00::/8", "fd00::/112", "fd00::1/128", "::/64")
}

func (w *world) selector() metav1.LabelSelector {
	s := metav1.LabelSelector{}
	if w.bad() {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			pick(w, metav1.LabelSelectorRequirement{Key: "a", Operator: "Near"}, metav1.LabelSelectorRequirement{Key: "a", Operator: metav1.LabelSelectorOpIn}, metav1.LabelSelectorRequirement{Key: "-"}),
		}}
	}
	switch w.IntN(5) {
	case 0:
	case 1, 2:
		s.MatchLabels = map[string]string{pick(w, "a", "b"): pick(w, "x", "y")}
	case 3:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: pick(w, "a", "b"), Operator: pick(w, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}}
	case 4:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: pick(w, "a", "b"), Operator: pick(w, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{pick(w, "x", "y")}}}
	}
	return s
}

var (
	worldPorts = []uint16{0, 1, 79, 80, 81, 90, 443, 8079, 8080, 8081, 65535}
	portNames  = []string{"web", "dns"}
)

func (w *world) port() int32 {
	if w.bad() {
		return pick(w, int32(0), -1, 65536, 1<<30)
	}
	return pick(w, int32(1), 80, 81, 443, 8080, 65535)
}

func (w *world) endPort() int32 {
	if w.bad() {
		return pick(w, int32(0), -5, 70000)
	}
	return pick(w, int32(65535), 65535, 8080)
}

func (w *world) policyPort() networkingv1.NetworkPolicyPort {
	p := networkingv1.NetworkPolicyPort{}
	if !w.one(3) {
		p.Protocol = ptr(pick(w, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP))
	}
	if w.bad() {
		p.Protocol = ptr(corev1.Protocol("ICMP"))
	}
	switch w.IntN(6) {
	case 0:
	case 1, 2:
		p.Port = ptr(intstr.FromString(pick(w, portNames...)))
		if w.bad() {
			p.Port = ptr(intstr.FromString(""))
		}
	case 3, 4:
		p.Port = ptr(intstr.FromInt32(w.port()))
	case 5:
		p.Port = ptr(intstr.FromInt32(pick(w, int32(1), 80, 81, 443, 8079)))
		p.EndPort = ptr(w.endPort())
	}
	if w.bad() {
		p.EndPort = ptr(int32(90))
	}
	return p
}

func (w *world) policyPeer() (p networkingv1.NetworkPolicyPeer) {
	switch w.IntN(5) {
	case 0:
		p.PodSelector = ptr(w.selector())
	case 1:
		p.NamespaceSelector = ptr(w.selector())
	case 2:
		p.PodSelector, p.NamespaceSelector = ptr(w.selector()), ptr(w.selector())
	default:
		p.IPBlock = &networkingv1.IPBlock{CIDR: w.cidr(), Except: some(w, 2, w.cidr)}
	}
	if w.bad() {
		p = pick(w, networkingv1.NetworkPolicyPeer{}, networkingv1.NetworkPolicyPeer{PodSelector: ptr(w.selector()), IPBlock: &networkingv1.IPBlock{CIDR: w.cidr()}})
	}
	return p
}

func (w *world) networkPolicy() *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(), Name: pick(w, "p1", "p2", "p3")}}
	np.Spec.PodSelector = w.selector()
	np.Spec.PolicyTypes = pick(w, nil, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Ingress", "Egress"})
	if w.bad() {
		np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, "Sideways")
	}
	np.Spec.Ingress = some(w, 3, func() networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: some(w, 2, w.policyPeer), Ports: some(w, 2, w.policyPort)}
	})
	np.Spec.Egress = some(w, 3, func() networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: some(w, 2, w.policyPeer), Ports: some(w, 2, w.policyPort)}
	})
	return np
}

func (w *world) clusterPort() *v1alpha2.Port {
	if w.bad() {
		return pick(w, nil, &v1alpha2.Port{}, &v1alpha2.Port{Number: 80, Range: &v1alpha2.PortRange{Start: 1, End: 2}}, &v1alpha2.Port{Range: &v1alpha2.PortRange{Start: 9, End: w.endPort()}})
	}
	if w.one(2) {
		return &v1alpha2.Port{Number: w.port()}
	}
	return &v1alpha2.Port{Range: &v1alpha2.PortRange{Start: pick(w, int32(1), 79, 80, 443), End: pick(w, int32(443), 8080, 65535)}}
}

func (w *world) clusterProtocol() (p v1alpha2.ClusterNetworkPolicyProtocol) {
	switch w.IntN(4) {
	case 0:
		p.TCP = &v1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: w.clusterPort()}
	case 1:
		p.UDP = &v1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: w.clusterPort()}
	case 2:
		p.SCTP = &v1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: w.clusterPort()}
	case 3:
		p.DestinationNamedPort = pick(w, portNames...)
	}
	if w.bad() {
		p = pick(w, v1alpha2.ClusterNetworkPolicyProtocol{}, v1alpha2.ClusterNetworkPolicyProtocol{TCP: &v1alpha2.ClusterNetworkPolicyProtocolTCP{}, DestinationNamedPort: "web"})
	}
	return p
}

func (w *world) namespacedPod() *v1alpha2.NamespacedPod {
	return &v1alpha2.NamespacedPod{NamespaceSelector: w.selector(), PodSelector: w.selector()}
}

func (w *world) clusterPeer() (p v1alpha2.ClusterNetworkPolicyEgressPeer) {
	switch w.IntN(4) {
	case 0:
		p.Namespaces = ptr(w.selector())
	case 1:
		p.Pods = w.namespacedPod()
	case 2:
		p.Nodes = ptr(w.selector())
	case 3:
		for _, c := range append(some(w, 2, w.cidr), w.cidr()) {
			p.Networks = append(p.Networks, v1alpha2.CIDR(c))
		}
	}
	if w.bad() {
		p = pick(w, v1alpha2.ClusterNetworkPolicyEgressPeer{}, v1alpha2.ClusterNetworkPolicyEgressPeer{DomainNames: []v1alpha2.DomainName{"a.b"}}, v1alpha2.ClusterNetworkPolicyEgressPeer{Nodes: ptr(w.selector()), Pods: w.namespacedPod()})
	}
	return p
}

func (w *world) clusterPolicy() *v1alpha2.ClusterNetworkPolicy {
	cnp := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: pick(w, "c1", "c2", "c3")}}
	cnp.Spec.Tier = pick(w, v1alpha2.AdminTier, v1alpha2.BaselineTier)
	cnp.Spec.Priority = pick(w, int32(1), 2)
	if w.one(2) {
		cnp.Spec.Subject.Namespaces = ptr(w.selector())
	} else {
		cnp.Spec.Subject.Pods = w.namespacedPod()
	}
	if w.bad() {
		cnp.Spec.Tier = "Middle"
	}
	if w.bad() {
		cnp.Spec.Subject.Namespaces = nil
	}
	action := func() v1alpha2.ClusterNetworkPolicyRuleAction {
		if w.bad() {
			return "Ponder"
		}
		return pick(w, v1alpha2.ClusterNetworkPolicyRuleActionAccept, v1alpha2.ClusterNetworkPolicyRuleActionDeny, v1alpha2.ClusterNetworkPolicyRuleActionPass)
	}
	cnp.Spec.Ingress = some(w, 3, func() v1alpha2.ClusterNetworkPolicyIngressRule {
		r := v1alpha2.ClusterNetworkPolicyIngressRule{Action: action(), Protocols: some(w, 2, w.clusterProtocol)}
		for range 1 + w.IntN(2) {
			p := w.clusterPeer()
			if w.hostile || p.Namespaces != nil || p.Pods != nil {
				r.From = append(r.From, v1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
			}
		}
		if !w.hostile && r.From == nil {
			r.From = []v1alpha2.ClusterNetworkPolicyIngressPeer{{Pods: w.namespacedPod()}}
		}
		return r
	})
	cnp.Spec.Egress = some(w, 3, func() v1alpha2.ClusterNetworkPolicyEgressRule {
		r := v1alpha2.ClusterNetworkPolicyEgressRule{Name: pick(w, "", "rule"), Action: action(), Protocols: some(w, 2, w.clusterProtocol)}
		r.To = append(some(w, 1, w.clusterPeer), w.clusterPeer())
		return r
	})
	return cnp
}

func (w *world) pod() Pod {
	p := Pod{Namespace: w.namespace(), Name: pick(w, "a", "b", "c", "d"), Labels: w.labels(), Local: w.one(2), HostNetwork: w.one(10), Finished: w.one(10)}
	p.Addrs = some(w, 2, func() netip.Addr { return pick(w, worldAddrs...) })
	p.Ports = some(w, 2, func() NamedPort {
		return NamedPort{pick(w, portNames...), pick(w, TCP, UDP), pick(w, uint16(80), 8080, 53)}
	})
	return p
}

// change makes one random change. Changes of labels only are frequent, as they are.
func (w *world) change() string {
	switch w.IntN(16) {
	case 0, 1:
		p := w.pod()
		w.e.SetPod(p)
		return fmt.Sprintf("pod %+v", p)
	case 2, 3, 4:
		for _, key := range sortedKeys(w.e.pods) {
			if p := w.e.pods[key]; w.one(4) {
				in := p.Pod
				in.Labels = w.labels()
				w.e.SetPod(in)
				return fmt.Sprintf("relabelled %+v", in)
			}
		}
		return ""
	case 5:
		ns, name := w.namespace(), pick(w, "a", "b", "c", "d")
		w.e.DeletePod(ns, name)
		return "deleted pod " + ns + "/" + name
	case 6, 7:
		ns, l := w.namespace(), w.labels()
		w.e.SetNamespace(ns, l)
		return fmt.Sprintf("namespace %s %v", ns, l)
	case 8:
		name := w.namespace()
		w.e.DeleteNamespace(name)
		return "deleted namespace " + name
	case 9:
		name, l, a := pick(w, "k1", "k2"), w.labels(), some(w, 2, func() netip.Addr { return pick(w, worldAddrs...) })
		w.e.SetNode(name, l, a)
		return fmt.Sprintf("node %s %v %v", name, l, a)
	case 10, 11:
		np := w.networkPolicy()
		_ = w.e.SetNetworkPolicy(np)
		return fmt.Sprintf("networkpolicy %s/%s %+v", np.Namespace, np.Name, np.Spec)
	case 12:
		ns, name := w.namespace(), pick(w, "p1", "p2", "p3")
		w.e.DeleteNetworkPolicy(ns, name)
		return "deleted networkpolicy " + ns + "/" + name
	case 13, 14:
		cnp := w.clusterPolicy()
		_ = w.e.SetClusterNetworkPolicy(cnp)
		return fmt.Sprintf("clusternetworkpolicy %s %+v", cnp.Name, cnp.Spec)
	}
	name := pick(w, "c1", "c2", "c3")
	if w.one(3) {
		node := pick(w, "k1", "k2")
		w.e.DeleteNode(node)
	}
	w.e.DeleteClusterNetworkPolicy(name)
	return "deleted clusternetworkpolicy " + name
}
