package policy

import (
	"fmt"
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

const (
	benchNamespaces = 50
	benchPods       = 5000
	benchPolicies   = 500
	benchLocal      = 200
)

func benchPod(i int, version string) Pod {
	return Pod{
		Namespace: fmt.Sprintf("ns%d", i%benchNamespaces), Name: fmt.Sprintf("pod%d", i),
		Labels: map[string]string{"app": fmt.Sprintf("app%d", i/benchNamespaces%20), "version": version},
		Addrs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)})},
		Local:  i < benchLocal,
		Ports:  []NamedPort{{"http", TCP, uint16(8000 + i%3)}},
	}
}

func benchPolicy(i int, port int32) *networkingv1.NetworkPolicy {
	app := func(n int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("app%d", n%20)}}
	}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns%d", i%benchNamespaces), Name: fmt.Sprintf("np%d", i)}}
	np.Spec.PodSelector = *app(i / benchNamespaces)
	np.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress", "Egress"}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: app(i + 1)},
			{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprintf("t%d", i%7)}}, PodSelector: app(i + 2)},
		},
		Ports: []networkingv1.NetworkPolicyPort{{Port: ptr(intstr.FromInt32(port))}, {Port: ptr(intstr.FromString("http"))}},
	}}
	np.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{
		{To: []networkingv1.NetworkPolicyPeer{{PodSelector: app(i + 3)}}, Ports: []networkingv1.NetworkPolicyPort{{Port: ptr(intstr.FromString("http"))}}},
		{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8", fmt.Sprintf("192.168.%d.0/24", i%40)}}}}},
	}
	return np
}

func benchEngine(b *testing.B) *Engine {
	b.Helper()
	e := New(1)
	for i := range benchNamespaces {
		e.SetNamespace(fmt.Sprintf("ns%d", i), map[string]string{"team": fmt.Sprintf("t%d", i%7)})
	}
	for i := range benchPods {
		e.SetPod(benchPod(i, "1"))
	}
	for i := range benchPolicies {
		if err := e.SetNetworkPolicy(benchPolicy(i, 80)); err != nil {
			b.Fatal(err)
		}
	}
	cnp := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny-metadata"}}
	cnp.Spec.Tier, cnp.Spec.Subject.Namespaces = v1alpha2.AdminTier, &metav1.LabelSelector{}
	cnp.Spec.Egress = []v1alpha2.ClusterNetworkPolicyEgressRule{{
		Action: v1alpha2.ClusterNetworkPolicyRuleActionDeny,
		To:     []v1alpha2.ClusterNetworkPolicyEgressPeer{{Networks: []v1alpha2.CIDR{"169.254.169.254/32"}}},
	}}
	if err := e.SetClusterNetworkPolicy(cnp); err != nil {
		b.Fatal(err)
	}
	return e
}

func report(b *testing.B, e *Engine) {
	b.Helper()
	t := e.Tables()
	b.ReportMetric(float64(len(t.Rules)), "rules")
	b.ReportMetric(float64(len(t.Peers)), "peers")
	b.ReportMetric(float64(len(e.peers.classes)), "classes")
	b.ReportMetric(float64(len(e.sets)), "sets")
}

func BenchmarkStart(b *testing.B) {
	var e *Engine
	for b.Loop() {
		e = benchEngine(b)
		e.Compile()
	}
	report(b, e)
}

// BenchmarkPodChange changes the labels that policies ask for of one remote pod.
func BenchmarkPodChange(b *testing.B) {
	e := benchEngine(b)
	e.Compile()
	n := 0
	for b.Loop() {
		n++
		p := benchPod(benchPods-1, "1")
		p.Labels["app"] = fmt.Sprintf("app%d", n%20)
		e.SetPod(p)
		e.Compile()
	}
	report(b, e)
}

// BenchmarkLocalPodChange changes a pod that is governed here, too.
func BenchmarkLocalPodChange(b *testing.B) {
	e := benchEngine(b)
	e.Compile()
	n := 0
	for b.Loop() {
		n++
		p := benchPod(0, "1")
		p.Labels["app"] = fmt.Sprintf("app%d", n%20)
		e.SetPod(p)
		e.Compile()
	}
}

// BenchmarkPolicyChange changes a port of a policy that governs local pods.
func BenchmarkPolicyChange(b *testing.B) {
	e := benchEngine(b)
	e.Compile()
	n := 0
	for b.Loop() {
		n++
		if err := e.SetNetworkPolicy(benchPolicy(0, int32(80+n%100))); err != nil {
			b.Fatal(err)
		}
		if e.Compile() == nil {
			b.Fatal("no change")
		}
	}
}

// BenchmarkClusterPolicyChange adds and removes blocks for every pod of the cluster.
func BenchmarkClusterPolicyChange(b *testing.B) {
	e := benchEngine(b)
	e.Compile()
	n := 0
	for b.Loop() {
		n++
		cnp := &v1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "blocks"}}
		cnp.Spec.Tier, cnp.Spec.Subject.Namespaces = v1alpha2.AdminTier, &metav1.LabelSelector{}
		cnp.Spec.Egress = []v1alpha2.ClusterNetworkPolicyEgressRule{{
			Action: v1alpha2.ClusterNetworkPolicyRuleActionDeny,
			To:     []v1alpha2.ClusterNetworkPolicyEgressPeer{{Networks: []v1alpha2.CIDR{v1alpha2.CIDR(fmt.Sprintf("10.42.%d.0/24", n%16))}}},
		}}
		if err := e.SetClusterNetworkPolicy(cnp); err != nil {
			b.Fatal(err)
		}
		if e.Compile() == nil {
			b.Fatal("no change")
		}
	}
}
