package network

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/kombi-k8s/kombi/pkg/network/cniapi"
)

// What policy decides is tested in package policy; here it must be in force.
func TestPolicy(t *testing.T) {
	for _, m := range []mode{modes[0], modes[2]} {
		t.Run(m.name, func(t *testing.T) {
			e, parent := newEnv(t, m), t
			for _, c := range []struct {
				name string
				run  func(*testing.T, *env)
			}{
				{"ingress", policyIngress},
				{"egress", policyEgress},
				{"a label decides at once", policyLabels},
				{"services and node ports", policyServices},
				{"connections live and end by policy", policyConnections},
				{"reports about packets come back", policyReports},
				{"cluster policy", policyCluster},
				{"a restart opens nothing", policyRestart},
				{"a pod waits for its policy", policyBeforeFirstPacket},
				{"an address has no past", policyAddressReuse},
			} {
				t.Run(c.name, func(t *testing.T) {
					e.t = t
					defer func() { e.t = parent }()
					c.run(t, e)
				})
			}
		})
	}
}

func labels(kv ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i]] = kv[i+1]
	}
	return out
}

func selector(kv ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: labels(kv...)}
}

// policy creates a NetworkPolicy and waits until it is in force.
func (e *env) policy(name string, spec networkingv1.NetworkPolicySpec) {
	e.t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: spec}
	api := e.client.NetworkingV1().NetworkPolicies("default")
	_, err := api.Create(e.t.Context(), p, metav1.CreateOptions{})
	e.must(err)
	e.inForce("NetworkPolicy default/"+name, true)
	e.t.Cleanup(func() {
		_ = api.Delete(context.Background(), name, metav1.DeleteOptions{})
		e.inForce("NetworkPolicy default/"+name, false)
	})
}

// inForce waits until a policy is known and everything that is known is in the maps.
func (e *env) inForce(policy string, known bool) {
	e.t.Helper()
	e.eventually(policy, func() bool {
		e.net.enforcer.mu.Lock()
		defer e.net.enforcer.mu.Unlock()
		return e.net.enforcer.policies[policy] == known
	})
	e.settled()
}

func (e *env) settled() {
	e.t.Helper()
	e.eventually("everything is in force", func() bool {
		n := e.net.enforcer
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.partial {
			return false
		}
		return n.apply() == nil
	})
}

func (e *env) relabel(p pod, kv ...string) {
	e.t.Helper()
	api := e.client.CoreV1().Pods("default")
	obj, err := api.Get(e.t.Context(), p.id, metav1.GetOptions{})
	e.must(err)
	obj.Labels = labels(kv...)
	_, err = api.Update(e.t.Context(), obj, metav1.UpdateOptions{})
	e.must(err)
}

func denied(t *testing.T, what string, r reply) {
	t.Helper()
	if r.Err != "timeout" {
		t.Errorf("%s: got %+v, want silence", what, r)
	}
}

var onlyIngress = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
var onlyEgress = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}

func from(peers ...networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyIngressRule {
	return []networkingv1.NetworkPolicyIngressRule{{From: peers}}
}

func podPeer(kv ...string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{PodSelector: selector(kv...)}
}

func policyIngress(t *testing.T, e *env) {
	web, friend, other := e.addLabeled(labels("app", "web")), e.addLabeled(labels("app", "friend")), e.addLabeled(labels("app", "other"))
	web.serve(t, "tcp", ":80", "web")
	web.serve(t, "tcp", ":81", "web81")
	web.serve(t, "udp", ":80", "web")
	expect(t, "before", other.call(t, "tcp", web.addr+":80"), "web", other.addr)
	tcp, eighty := corev1.ProtocolTCP, intstr.FromInt32(80)
	e.policy("web", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "web"), PolicyTypes: onlyIngress,
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{podPeer("app", "friend")}, Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &eighty}},
		}}})
	expect(t, "allowed", friend.call(t, "tcp", web.addr+":80"), "web", friend.addr)
	expect(t, "the pod itself", web.call(t, "tcp", web.addr+":80"), "web", web.addr)
	expect(t, "the node", e.host.call(t, "tcp", web.addr+":81"), "web81", nodeAddr)
	expect(t, "the node by UDP", e.host.call(t, "udp", web.addr+":80"), "web", nodeAddr)
	friend.serve(t, "udp", ":90", "friend")
	expect(t, "the pod asks another", web.call(t, "udp", friend.addr+":90"), "friend", web.addr)
	before := e.drops("policy")
	denied(t, "another pod", other.brief().call(t, "tcp", web.addr+":80"))
	if e.drops("policy") == before {
		t.Error("nothing was counted")
	}
	denied(t, "another protocol", friend.brief().call(t, "udp", web.addr+":80"))
	denied(t, "another port", friend.brief().call(t, "tcp", web.addr+":81"))
	if friend.ping(t, web.addr) == nil {
		t.Error("an echo came through")
	}
}

func policyEgress(t *testing.T, e *env) {
	a, b := e.addLabeled(labels("app", "asks")), e.addLabeled(labels("app", "b"))
	e.host.serve(t, "udp", dnsAddr+":53", "dns")
	e.outside.serve(t, "tcp", worldAddr+":80", "world")
	b.serve(t, "tcp", ":80", "b")
	b.serve(t, "udp", ":80", "b")
	a.serve(t, "udp", ":80", "a")
	a.serve(t, "tcp", ":80", "a")
	e.policy("asks", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "asks"), PolicyTypes: onlyEgress,
		Egress: []networkingv1.NetworkPolicyEgressRule{
			{To: []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: selector("kubernetes.io/metadata.name", "kube-system"), PodSelector: selector("k8s-app", "kube-dns"),
			}}},
			{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "203.0.113.0/24", Except: []string{"203.0.113.8/32"}}}}},
		}})
	expect(t, "the cluster's DNS", a.call(t, "udp", dnsAddr+":53"), "dns", a.addr)
	expect(t, "a block", a.call(t, "tcp", worldAddr+":80"), "world", nodeAddr)
	expect(t, "answers", b.call(t, "udp", a.addr+":80"), "a", b.addr)
	expect(t, "answers by TCP", b.call(t, "tcp", a.addr+":80"), "a", b.addr)
	expect(t, "answers to the node", e.host.call(t, "udp", a.addr+":80"), "a", nodeAddr)
	denied(t, "a pod", a.brief().call(t, "tcp", b.addr+":80"))
	denied(t, "a pod by UDP", a.brief().call(t, "udp", b.addr+":80"))
}

func policyLabels(t *testing.T, e *env) {
	web, client := e.addLabeled(labels("app", "labeled")), e.addLabeled(labels("role", "none"))
	web.serve(t, "udp", ":80", "web")
	e.policy("labeled", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "labeled"), PolicyTypes: onlyIngress, Ingress: from(podPeer("role", "friend"))})
	denied(t, "without the label", client.brief().call(t, "udp", web.addr+":80"))
	e.relabel(client, "role", "friend")
	e.eventually("the label opens", func() bool { return client.brief().call(t, "udp", web.addr+":80").Err == "" })
	e.relabel(client, "role", "none")
	e.eventually("its loss closes", func() bool { return client.brief().call(t, "udp", web.addr+":80").Err == "timeout" })
	e.relabel(web, "app", "free")
	e.eventually("a pod that is not selected is open", func() bool { return client.brief().call(t, "udp", web.addr+":80").Err == "" })
}

func policyServices(t *testing.T, e *env) {
	web, friend, other := e.addLabeled(labels("app", "served")), e.addLabeled(labels("app", "friend")), e.addLabeled(nil)
	web.serve(t, "tcp", ":80", "web")
	web.serve(t, "udp", ":80", "web")
	e.service(svc{name: "served", ip: "10.43.1.40", backends: []string{web.addr}, ports: []corev1.ServicePort{
		port("x", corev1.ProtocolTCP, 80, 80, 30140), port("y", corev1.ProtocolUDP, 80, 80, 30140),
	}})
	e.policy("served", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "served"), PolicyTypes: onlyIngress,
		Ingress: from(podPeer("app", "friend"), networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: worldAddr + "/32"}})})
	e.policy("friend", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "friend"), PolicyTypes: onlyEgress,
		Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{podPeer("app", "served")}}}})
	expect(t, "allowed by TCP", friend.call(t, "tcp", "10.43.1.40:80"), "web", friend.addr)
	expect(t, "allowed by UDP", friend.call(t, "udp", "10.43.1.40:80"), "web", friend.addr)
	if e.mode.sockets {
		expect(t, "the node", e.host.call(t, "tcp", "10.43.1.40:80"), "web", nodeAddr)
	}
	world := e.outside.dial(t, "tcp", worldAddr+":0", nodeAddr+":30140")
	expect(t, "a block from outside", world.say("hello"), "web", worldAddr)
	denied(t, "another pod", other.brief().call(t, "tcp", "10.43.1.40:80"))
	denied(t, "another pod by UDP", other.brief().call(t, "udp", "10.43.1.40:80"))
	denied(t, "from outside", e.outside.brief().call(t, "tcp", nodeAddr+":30140"))
}

func policyConnections(t *testing.T, e *env) {
	web, client := e.addLabeled(labels("app", "live")), e.addLabeled(labels("role", "friend"))
	web.serve(t, "tcp", ":80", "web")
	live := client.dial(t, "tcp", "", web.addr+":80")
	expect(t, "before policy", live.say("x"), "web", "")
	e.policy("live", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "live"), PolicyTypes: onlyIngress, Ingress: from(podPeer("role", "friend"))})
	expect(t, "a policy that allows it", live.say("x"), "web", "")
	e.policy("client", networkingv1.NetworkPolicySpec{PodSelector: *selector("role", "friend"), PolicyTypes: onlyIngress})
	expect(t, "the client takes no connections", live.say("x"), "web", "")
	e.policy("more", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "live"), PolicyTypes: onlyIngress, Ingress: from(podPeer("role", "other"))})
	expect(t, "another policy beside it", live.say("x"), "web", "")
	e.relabel(client, "role", "stranger")
	e.eventually("a connection that is no longer allowed ends", func() bool { return live.say("x").Err == "timeout" })
}

func policyReports(t *testing.T, e *env) {
	client := e.addLabeled(labels("app", "asks"))
	e.policy("asks-more", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "asks"), PolicyTypes: append(onlyIngress, networkingv1.PolicyTypeEgress),
		Egress: []networkingv1.NetworkPolicyEgressRule{{}}})
	// Nobody listens there: the report is what ends the wait.
	c := client.dial(t, "udpc", "", outsideAddr+":9")
	if r := c.say("x"); r.Err != "ECONNREFUSED" {
		t.Errorf("got %+v, want ECONNREFUSED", r)
	}
}

func policyCluster(t *testing.T, e *env) {
	web, client := e.addLabeled(labels("app", "cluster")), e.addLabeled(labels("role", "any"))
	web.serve(t, "tcp", ":80", "web")
	api := e.cluster.PolicyV1alpha2().ClusterNetworkPolicies()
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}, Spec: policyv1alpha2.ClusterNetworkPolicySpec{
		Tier: policyv1alpha2.AdminTier, Priority: 10,
		Subject: policyv1alpha2.ClusterNetworkPolicySubject{Pods: &policyv1alpha2.NamespacedPod{PodSelector: *selector("app", "cluster")}},
		Ingress: []policyv1alpha2.ClusterNetworkPolicyIngressRule{{
			Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
			From:   []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Pods: &policyv1alpha2.NamespacedPod{PodSelector: *selector("role", "any")}}},
		}},
	}}
	_, err := api.Create(t.Context(), p, metav1.CreateOptions{})
	e.must(err)
	e.inForce("ClusterNetworkPolicy deny", true)
	denied(t, "in force", client.brief().call(t, "tcp", web.addr+":80"))
	e.must(api.Delete(t.Context(), "deny", metav1.DeleteOptions{}))
	e.inForce("ClusterNetworkPolicy deny", false)
	expect(t, "gone", client.call(t, "tcp", web.addr+":80"), "web", client.addr)
}

func policyRestart(t *testing.T, e *env) {
	web, friend, other := e.addLabeled(labels("app", "lasts")), e.addLabeled(labels("app", "friend")), e.addLabeled(nil)
	web.serve(t, "tcp", ":80", "web")
	web.serve(t, "udp", ":80", "web")
	e.policy("lasts", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "lasts"), PolicyTypes: onlyIngress, Ingress: from(podPeer("app", "friend"))})
	live := friend.dial(t, "tcp", "", web.addr+":80")
	// A client that must never be heard asks all the time.
	stop, heard := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(heard)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if r := other.brief().call(t, "udp", web.addr+":80"); r.Err == "" {
				heard <- r.Answer
				return
			}
		}
	}()
	for round := range 3 {
		when := fmt.Sprintf("round %d", round)
		expect(t, when+", before", live.say("x"), "web", "")
		e.stop()
		expect(t, when+", stopped", live.say("x"), "web", "")
		expect(t, when+", stopped, anew", friend.call(t, "tcp", web.addr+":80"), "web", "")
		e.start()
		expect(t, when+", started", friend.call(t, "tcp", web.addr+":80"), "web", "")
	}
	close(stop)
	if answer, ok := <-heard; ok {
		t.Errorf("a restart let somebody through: %s", answer)
	}
}

// A pod is attached only when its labels are known, and its policy is then in force.
func policyBeforeFirstPacket(t *testing.T, e *env) {
	web := e.addLabeled(labels("app", "x"))
	web.serve(t, "tcp", ":80", "web")
	e.policy("isolated", networkingv1.NetworkPolicySpec{PodSelector: *selector("late", "yes"), PolicyTypes: onlyEgress})
	p := pod{place: place{netns: newNetns(t), cgroup: e.host.cgroup}, id: "late"}
	done := make(chan *cniapi.Response, 1)
	go func() {
		resp, err := cniapi.Call(e.opts.SocketPath, &cniapi.Request{
			Command: "ADD", ContainerID: p.id, Netns: p.netns, IfName: "eth0", Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"kombi"}`),
			Args: "K8S_POD_NAMESPACE=default;K8S_POD_NAME=late;K8S_POD_UID=late",
		}, 20*time.Second)
		if err != nil {
			resp = &cniapi.Response{Error: &cniapi.Error{Msg: err.Error()}}
		}
		done <- resp
	}()
	select {
	case r := <-done:
		t.Fatalf("attached without its object: %+v", r)
	case <-time.After(300 * time.Millisecond): // it must not be done by then
	}
	obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late", UID: "late", Labels: labels("late", "yes")}}
	obj.Spec.NodeName = nodeName
	_, err := e.client.CoreV1().Pods("default").Create(t.Context(), obj, metav1.CreateOptions{})
	e.must(err)
	r := <-done
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	t.Cleanup(func() { p.delete(e) })
	denied(t, "the first packet", p.brief().call(t, "tcp", web.addr+":80"))
}

// What an address was allowed as another pod's must not help the pod that gets it next.
func policyAddressReuse(t *testing.T, e *env) {
	peer := e.addLabeled(labels("app", "peer"))
	peer.serve(t, "udp", ":80", "peer")
	e.policy("reuse", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "reuse"), PolicyTypes: onlyIngress})
	a := e.addLabeled(labels("app", "reuse"))
	expect(t, "the pod before", a.call(t, "udp", peer.addr+":80"), "peer", a.addr)
	a.delete(e)
	if n := e.connections(a.addr); n != 0 {
		t.Errorf("%d connections of an address without a pod are remembered", n)
	}
}

// connections counts what policy remembers of an address.
func (e *env) connections(addr string) (n int) {
	e.t.Helper()
	all, err := e.net.dp.Connections()
	e.must(err)
	for _, c := range all {
		if strings.Contains(c, addr+":") {
			n++
		}
	}
	return n
}
