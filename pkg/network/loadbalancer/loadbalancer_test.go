package loadbalancer

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func node(name string, change func(*corev1.Node), addrs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	for _, a := range addrs {
		kind := corev1.NodeInternalIP
		if rest, ok := strings.CutPrefix(a, "public "); ok {
			kind, a = corev1.NodeExternalIP, rest
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: a})
	}
	if change != nil {
		change(n)
	}
	return n
}

func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	if change != nil {
		change(s)
	}
	return s
}

func ips(in []corev1.LoadBalancerIngress) (out []string) {
	for _, i := range in {
		out = append(out, i.IP)
	}
	return out
}

func TestAssign(t *testing.T) {
	notReady := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }
	excluded := func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""} }
	nodes := []*corev1.Node{
		node("b", nil, "192.0.2.10", "2001:db8::10"), node("a", nil, "192.0.2.9", "2001:db8::9"),
		node("public", nil, "10.0.0.7", "public 203.0.113.7"), node("ill", notReady, "192.0.2.11"), node("out", excluded, "192.0.2.12"),
	}
	dual := func(s *corev1.Service) {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	}
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	for _, c := range []struct {
		name   string
		change func(*corev1.Service)
		want   []string
	}{
		{"the nodes that are ready", nil, []string{"192.0.2.9", "192.0.2.10", "203.0.113.7"}},
		{"two families", dual, []string{"2001:db8::9", "2001:db8::10", "192.0.2.9", "192.0.2.10", "203.0.113.7"}},
		{"only nodes with an endpoint", local, []string{"192.0.2.10"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ips(assign(service(c.change), nodes, func(n string) bool { return n == "b" }))
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestController(t *testing.T) {
	other := "example.com/lb"
	client := fake.NewClientset(node("a", nil, "192.0.2.9"), node("b", nil, "192.0.2.10"), service(nil),
		service(func(s *corev1.Service) { s.Name, s.Spec.LoadBalancerClass = "foreign", &other }),
		service(func(s *corev1.Service) { s.Name, s.Spec.Ports[0].Port = "ssh", 22 }),
		service(func(s *corev1.Service) {
			s.Name, s.Spec.ExternalTrafficPolicy = "local", corev1.ServiceExternalTrafficPolicyLocal
		}))
	ctx, cancel := context.WithCancel(t.Context())
	c := &Controller{opts: Options{Log: slog.New(slog.DiscardHandler), TakenPorts: []int32{22}}, client: client}
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, func() {}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	has := func(name string, want ...string) {
		t.Helper()
		deadline := time.Now().Add(5 * time.Second)
		for {
			s, err := client.CoreV1().Services("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := ips(s.Status.LoadBalancer.Ingress)
			if slices.Equal(got, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s has %v, want %v", name, got, want)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	has("web", "192.0.2.9", "192.0.2.10")
	has("foreign")
	has("ssh")
	has("local")
	name, ready := "b", true
	_, err := client.DiscoveryV1().EndpointSlices("ns").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x", Labels: map[string]string{discoveryv1.LabelServiceName: "local"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.5"}, NodeName: &name, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has("local", "192.0.2.10")
	if err := client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has("web", "192.0.2.10")

	deadline := time.Now().Add(5 * time.Second)
	for {
		events, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		if err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "PortNeededByNodes" && strings.Contains(e.Message, "port 22")
		}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody said why port 22 gets no address")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
