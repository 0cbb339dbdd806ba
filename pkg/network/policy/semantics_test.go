package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"
)

// small is the cluster that the rules are stated for.
func small() *Engine {
	e := New(1)
	e.SetNamespace("web", map[string]string{"team": "a"})
	e.SetNamespace("db", map[string]string{"team": "b"})
	e.SetNode("k1", map[string]string{"role": "edge"}, addrList("192.168.0.1", "fd01::1"))
	e.SetNode("k2", nil, addrList("192.168.0.2"))
	for _, p := range []Pod{
		{Namespace: "web", Name: "front", Labels: map[string]string{"app": "front"}, Addrs: addrList("10.0.0.1", "fd00::1"), Local: true, Ports: []NamedPort{{"http", TCP, 8080}, {"http", UDP, 8443}}},
		{Namespace: "web", Name: "back", Labels: map[string]string{"app": "back"}, Addrs: addrList("10.0.0.2"), Local: true, Ports: []NamedPort{{"http", TCP, 9090}}},
		{Namespace: "web", Name: "done", Labels: map[string]string{"app": "back"}, Addrs: addrList("10.0.0.9"), Finished: true},
		{Namespace: "db", Name: "pg", Labels: map[string]string{"app": "pg"}, Addrs: addrList("10.1.0.1"), Ports: []NamedPort{{"sql", TCP, 5432}}},
		{Namespace: "db", Name: "back", Labels: map[string]string{"app": "back"}, Addrs: addrList("10.1.0.2")},
		{Namespace: "web", Name: "host", Labels: map[string]string{"app": "back"}, Addrs: addrList("192.168.0.1"), HostNetwork: true, Local: true},
	} {
		e.SetPod(p)
	}
	return e
}

func addrList(in ...string) (out []netip.Addr) {
	for _, s := range in {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

var protocols = map[string]uint8{"tcp": TCP, "udp": UDP, "sctp": SCTP, "icmp": 1}

// parseProbe reads "pod < peer proto port" for ingress of a pod of namespace web, ">" for egress.
func parseProbe(t *testing.T, s string) (out probe) {
	t.Helper()
	var pod, dir, peer, proto string
	if n, _ := fmt.Sscan(s, &pod, &dir, &peer, &proto, &out.port); n < 4 {
		t.Fatalf("bad probe %q", s)
	}
	out.pod, out.peer, out.proto = "web/"+pod, netip.MustParseAddr(peer), protocols[proto]
	if dir == ">" {
		out.dir = Egress
	}
	return out
}

// load adds policies in YAML, separated by ---.
func load(t *testing.T, e *Engine, text string) (errs []string) {
	t.Helper()
	for i, doc := range strings.Split(text, "---") {
		var err error
		if strings.Contains(doc, "tier:") {
			cnp := &v1alpha2.ClusterNetworkPolicy{}
			if err := yaml.UnmarshalStrict([]byte(doc), cnp); err != nil {
				t.Fatal(err)
			}
			if cnp.Name == "" {
				cnp.Name = fmt.Sprintf("c%d", i)
			}
			err = e.SetClusterNetworkPolicy(cnp)
		} else {
			np := &networkingv1.NetworkPolicy{}
			if err := yaml.UnmarshalStrict([]byte(doc), np); err != nil {
				t.Fatal(err)
			}
			np.Namespace, np.Name = "web", fmt.Sprintf("p%d", i)
			err = e.SetNetworkPolicy(np)
		}
		if err != nil {
			errs = append(errs, err.Error())
		}
	}
	return errs
}

type rulesTest struct {
	name        string
	policies    string
	allow, deny []string
}

// check asks the reference and the tables.
func (c rulesTest) check(t *testing.T, e *Engine) {
	t.Helper()
	k := newKernel()
	if u := e.Compile(); u != nil {
		k.apply(u, func(string) {})
	}
	try := func(s string, want bool) {
		t.Helper()
		p := parseProbe(t, s)
		d, _ := decide(e, p)
		v, err := k.judge(p.pod, p.dir, p.peer, p.proto, p.port)
		if d.Allow != want || v.Allow != want || err != nil {
			t.Errorf("%s: want %v; reference %v; tables %v (%s) %v", s, want, d, v, e.Reason(v.Policy), err)
		}
	}
	for _, s := range c.allow {
		try(s, true)
	}
	for _, s := range c.deny {
		try(s, false)
	}
}

func TestNetworkPolicyRules(t *testing.T) {
	for _, c := range []rulesTest{
		{"no policy allows everything", `{spec: {podSelector: {matchLabels: {app: none}}}}`,
			[]string{"front < 10.0.0.2 tcp 80", "front > 8.8.8.8 icmp"}, nil},
		{"a policy without types isolates ingress only, if it has no egress rules", `{spec: {podSelector: {}}}`,
			[]string{"front > 10.0.0.2 tcp 80"}, []string{"front < 10.0.0.2 tcp 80", "front < 8.8.8.8 icmp"}},
		{"a policy without types isolates egress, if it has egress rules", `{spec: {podSelector: {}, egress: [{ports: [{port: 53, protocol: UDP}]}]}}`,
			[]string{"front > 8.8.8.8 udp 53"}, []string{"front < 10.0.0.2 tcp 80", "front > 8.8.8.8 tcp 53"}},
		{"types restrict the policy", `{spec: {podSelector: {}, policyTypes: [Egress], ingress: [{from: [{podSelector: {}}]}]}}`,
			[]string{"front < 8.8.8.8 tcp 80"}, []string{"front > 10.0.0.2 tcp 80"}},
		{"only selected pods are isolated", `{spec: {podSelector: {matchLabels: {app: back}}}}`,
			[]string{"front < 10.0.0.2 tcp 80"}, []string{"back < 10.0.0.1 tcp 80"}},
		{"a rule without peers and ports allows all, whatever the protocol", `{spec: {podSelector: {}, ingress: [{}]}}`,
			[]string{"front < 8.8.8.8 icmp", "front < 10.0.0.2 tcp 80", "front < fd00::9 sctp 1"}, nil},
		{"a pod selector selects pods of the policy's namespace", `{spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: back}}}]}]}}`,
			[]string{"front < 10.0.0.2 tcp 80", "front < 10.0.0.2 icmp"}, []string{"front < 10.1.0.2 tcp 80", "front < 10.0.0.1 tcp 80", "front < 8.8.8.8 tcp 80"}},
		{"a namespace selector selects all pods in it", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}}]}]}}`,
			[]string{"front < 10.1.0.1 tcp 80", "front < 10.1.0.2 tcp 80"}, []string{"front < 10.0.0.2 tcp 80", "front < 8.8.8.8 tcp 80"}},
		{"both selectors of one peer must match", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: back}}}]}]}}`,
			[]string{"front < 10.1.0.2 tcp 80"}, []string{"front < 10.0.0.2 tcp 80", "front < 10.1.0.1 tcp 80"}},
		{"of two peers one must match", `{spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: b}}}, {podSelector: {matchLabels: {app: back}}}]}]}}`,
			[]string{"front < 10.1.0.1 tcp 80", "front < 10.0.0.2 tcp 80"}, []string{"front < 10.0.0.1 tcp 80"}},
		{"host network and finished pods are no peers", `{spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}}`,
			[]string{"front < 10.0.0.2 tcp 80"}, []string{"front < 192.168.0.1 tcp 80", "front < 10.0.0.9 tcp 80"}},
		{"a block without its exceptions", `{spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.0.0.2/32]}}]}]}}`,
			[]string{"front > 10.2.3.4 tcp 80", "front > 10.0.0.1 icmp"}, []string{"front > 10.1.0.1 tcp 80", "front > 10.0.0.2 tcp 80", "front > 8.8.8.8 tcp 80", "front > fd00::1 tcp 80"}},
		{"what one block excepts another may have", `{spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {ipBlock: {cidr: 10.1.2.0/24}}]}]}}`,
			[]string{"front > 10.2.3.4 tcp 80", "front > 10.1.2.9 tcp 80"}, []string{"front > 10.1.0.1 tcp 80"}},
		{"IPv6 blocks do not contain IPv4", `{spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: "::/0", except: ["fd00::/8"]}}]}]}}`,
			[]string{"front > 2001:db8::1 tcp 80"}, []string{"front > 10.0.0.2 tcp 80", "front > 8.8.8.8 tcp 80", "front > fd00::1 tcp 80"}},
		{"IPv4 blocks do not contain IPv6", `{spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}}`,
			[]string{"front > 8.8.8.8 tcp 80", "front > 10.0.0.2 tcp 80"}, []string{"front > 2001:db8::1 tcp 80"}},
		{"the protocol defaults to TCP", `{spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}}`,
			[]string{"front < 8.8.8.8 tcp 80"}, []string{"front < 8.8.8.8 udp 80", "front < 8.8.8.8 tcp 81", "front < 8.8.8.8 icmp"}},
		{"a protocol without a port means all of its ports", `{spec: {podSelector: {}, ingress: [{ports: [{protocol: SCTP}]}]}}`,
			[]string{"front < 8.8.8.8 sctp 1", "front < 8.8.8.8 sctp 65535"}, []string{"front < 8.8.8.8 tcp 1", "front < 8.8.8.8 icmp"}},
		{"a range of ports includes both ends", `{spec: {podSelector: {}, ingress: [{ports: [{port: 80, endPort: 8079}]}]}}`,
			[]string{"front < 8.8.8.8 tcp 80", "front < 8.8.8.8 tcp 8079", "front < 8.8.8.8 tcp 1024"}, []string{"front < 8.8.8.8 tcp 79", "front < 8.8.8.8 tcp 8080", "front < 8.8.8.8 udp 80"}},
		{"a named port at ingress is the subject's", `{spec: {podSelector: {}, ingress: [{ports: [{port: http}]}]}}`,
			[]string{"front < 8.8.8.8 tcp 8080", "back < 8.8.8.8 tcp 9090"}, []string{"front < 8.8.8.8 tcp 9090", "front < 8.8.8.8 udp 8443", "back < 8.8.8.8 tcp 8080"}},
		{"a named port at egress is the destination's", `{spec: {podSelector: {}, egress: [{ports: [{port: http}, {port: sql}]}]}}`,
			[]string{"front > 10.0.0.2 tcp 9090", "back > 10.0.0.1 tcp 8080", "back > fd00::1 tcp 8080", "back > 10.1.0.1 tcp 5432"},
			[]string{"back > 10.0.0.2 tcp 8080", "back > 10.0.0.1 udp 8443", "back > 10.1.0.2 tcp 5432", "back > 8.8.8.8 tcp 8080"}},
		{"a named port that nobody has matches nothing", `{spec: {podSelector: {}, ingress: [{ports: [{port: nobody}]}]}}`,
			nil, []string{"front < 8.8.8.8 tcp 8080", "front < 8.8.8.8 icmp"}},
		{"peers and ports must both match", `{spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}, {from: [{ipBlock: {cidr: 8.0.0.0/8}}], ports: [{port: 81}]}]}}`,
			[]string{"front < 10.0.0.2 tcp 80", "front < 8.8.8.8 tcp 81"}, []string{"front < 10.0.0.2 tcp 81", "front < 8.8.8.8 tcp 80"}},
		{"policies add up", `{spec: {podSelector: {}}}
---
{spec: {podSelector: {matchLabels: {app: front}}, ingress: [{from: [{podSelector: {}}]}]}}`,
			[]string{"front < 10.0.0.2 tcp 80"}, []string{"back < 10.0.0.1 tcp 80", "front < 10.1.0.1 tcp 80"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := small()
			if errs := load(t, e, c.policies); errs != nil {
				t.Error(errs)
			}
			c.check(t, e)
		})
	}
}

func TestClusterNetworkPolicyRules(t *testing.T) {
	for _, c := range []rulesTest{
		{"the first rule that matches wins", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [
			{action: Accept, from: [{namespaces: {matchLabels: {team: b}}}], protocols: [{tcp: {destinationPort: {number: 80}}}]},
			{action: Deny, from: [{namespaces: {}}]}]}}`,
			[]string{"front < 10.1.0.1 tcp 80", "front < 8.8.8.8 tcp 1", "front > 10.1.0.1 tcp 81"}, []string{"front < 10.1.0.1 tcp 81", "front < 10.0.0.2 tcp 80", "front < 10.0.0.2 icmp"}},
		{"subjects are pods in namespaces", `{spec: {tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {app: front}}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`,
			[]string{"back < 10.0.0.1 tcp 80"}, []string{"front < 10.0.0.2 tcp 80"}},
		{"peers are pods in namespaces", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: back}}}}]}]}}`,
			[]string{"front < 10.1.0.1 tcp 80", "front < 192.168.0.1 tcp 80", "front < 10.0.0.9 tcp 80"}, []string{"front < 10.0.0.2 tcp 80", "front < 10.1.0.2 tcp 80"}},
		{"lower priority numbers come first", `{spec: {tier: Admin, priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}
---
{spec: {tier: Admin, priority: 4, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {team: b}}}]}]}}`,
			[]string{"front < 10.1.0.1 tcp 80"}, []string{"front < 10.0.0.2 tcp 80"}},
		{"equal priorities go by name", `{metadata: {name: z}, spec: {tier: Admin, priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}
---
{metadata: {name: a}, spec: {tier: Admin, priority: 5, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {team: b}}}]}]}}`,
			[]string{"front < 10.1.0.1 tcp 80"}, []string{"front < 10.0.0.2 tcp 80"}},
		{"admin rules come before network policies", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [
			{action: Accept, from: [{namespaces: {matchLabels: {team: b}}}]}, {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: back}}}}]}]}}
---
{spec: {podSelector: {matchLabels: {app: front}}, ingress: [{from: [{podSelector: {}}]}]}}`,
			[]string{"front < 10.1.0.1 tcp 80", "front < 10.0.0.1 tcp 80"}, []string{"front < 10.0.0.2 tcp 80", "front < 8.8.8.8 tcp 80"}},
		{"pass leaves the tier", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [
			{action: Pass, from: [{namespaces: {matchLabels: {team: b}}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}, {action: Deny, from: [{namespaces: {}}]}]}}
---
{spec: {tier: Admin, priority: 2, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}
---
{spec: {podSelector: {matchLabels: {app: front}}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: pg}}}]}]}}`,
			[]string{"front < 10.1.0.1 tcp 80", "back < 10.1.0.1 tcp 80"}, []string{"front < 10.1.0.2 tcp 80", "front < 10.1.0.1 tcp 81", "back < 10.1.0.1 tcp 81"}},
		{"baseline rules hold only where no network policy selects the pod", `{spec: {tier: Baseline, priority: 1, subject: {namespaces: {}}, ingress: [
			{action: Pass, from: [{namespaces: {matchLabels: {team: b}}}]}, {action: Deny, from: [{namespaces: {}}]}]}}
---
{spec: {podSelector: {matchLabels: {app: front}}, ingress: [{from: [{podSelector: {}}]}]}}`,
			[]string{"front < 10.0.0.2 tcp 80", "back < 10.1.0.1 tcp 80", "back < 8.8.8.8 tcp 80"}, []string{"back < 10.0.0.1 tcp 80", "front < 10.1.0.1 tcp 80"}},
		{"nodes are peers of egress", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{nodes: {matchLabels: {role: edge}}}]}]}}`,
			[]string{"front > 192.168.0.2 tcp 80", "front < 192.168.0.1 tcp 80"}, []string{"front > 192.168.0.1 tcp 80", "front > fd01::1 icmp"}},
		{"networks are peers of egress, also for pods in them", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [
			{action: Accept, to: [{networks: [10.1.0.0/16, "fd00::/8"]}]}, {action: Deny, to: [{networks: [0.0.0.0/0, "::/0"]}]}]}}`,
			[]string{"front > 10.1.0.1 tcp 80", "front > fd00::1 tcp 80"}, []string{"front > 10.0.0.2 tcp 80", "front > 8.8.8.8 icmp", "front > 2001:db8::1 tcp 80"}},
		{"protocols with ports and ranges", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}], protocols: [
			{tcp: {destinationPort: {range: {start: 80, end: 90}}}}, {udp: {destinationPort: {number: 53}}}, {sctp: {destinationPort: {number: 9}}}]}]}}`,
			[]string{"front > 8.8.8.8 tcp 79", "front > 8.8.8.8 tcp 91", "front > 8.8.8.8 udp 80", "front > 8.8.8.8 icmp"},
			[]string{"front > 8.8.8.8 tcp 80", "front > 8.8.8.8 tcp 90", "front > 8.8.8.8 udp 53", "front > 8.8.8.8 sctp 9"}},
		{"a named port of any protocol", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: http}]}],
			egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{destinationNamedPort: http}]}]}}`,
			[]string{"front < 10.0.0.2 tcp 9090", "front > 10.0.0.2 tcp 8080", "front < 8.8.8.8 tcp 8080"},
			[]string{"front < 10.0.0.2 tcp 8080", "front < 10.0.0.2 udp 8443", "front > 10.0.0.2 tcp 9090", "back > 10.0.0.1 udp 8443"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := small()
			if errs := load(t, e, c.policies); errs != nil {
				t.Error(errs)
			}
			c.check(t, e)
		})
	}
}

// What is invalid fails closed, and the error says what and where.
func TestInvalidPolicies(t *testing.T) {
	for _, c := range []struct {
		rulesTest
		err string
	}{
		{rulesTest{"a rule with a bad block allows nothing, others still do", `{spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 8.0.0.0/99}}, {podSelector: {}}]}, {ports: [{port: 80}]}]}}`,
			[]string{"front < 8.8.8.8 tcp 80"}, []string{"front < 8.8.8.8 tcp 81", "front < 10.0.0.2 tcp 81"}},
			`networkpolicy web/p0: spec.ingress[0].from[0]: ipBlock: "8.0.0.0/99" is not a block of addresses`},
		{rulesTest{"a bad selector of a policy selects the whole namespace", `{spec: {podSelector: {matchExpressions: [{key: app, operator: Near}]}}}`,
			nil, []string{"front < 8.8.8.8 tcp 81", "back < 10.0.0.1 tcp 81"}},
			`networkpolicy web/p0: spec.podSelector: "Near" is not a valid label selector operator`},
		{rulesTest{"a bad port", `{spec: {podSelector: {}, egress: [{ports: [{port: 80}, {port: 90, endPort: 80}]}]}}`,
			nil, []string{"front > 8.8.8.8 tcp 80"}},
			`networkpolicy web/p0: spec.egress[0].ports[1]: 90 to 80 is not a range of ports`},
		{rulesTest{"an accepting cluster rule with an unknown peer matches nothing, a passing one denies all", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{}]}], egress: [{action: Accept, to: [{nodes: {}}]}, {action: Pass, to: [{}]}]}}`,
			[]string{"front < 8.8.8.8 tcp 80", "front > 192.168.0.1 tcp 80"}, []string{"front > 8.8.8.8 tcp 80", "front > 8.8.8.8 icmp"}},
			`clusternetworkpolicy c0: spec.ingress[0]: from[0]: exactly one known kind of peer must be given`},
		{rulesTest{"domain names are not supported", `{spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Accept, to: [{domainNames: [a.b]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}}`,
			nil, []string{"front > 8.8.8.8 tcp 80"}},
			`clusternetworkpolicy c0: spec.egress[0]: to[0]: domainNames are not supported`},
		{rulesTest{"a bad subject of a cluster policy governs nothing", `{spec: {tier: Admin, priority: 1, subject: {}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`,
			[]string{"front < 10.0.0.2 tcp 80"}, nil},
			`clusternetworkpolicy c0: spec.subject: exactly one of namespaces and pods must be given`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := small()
			errs := load(t, e, c.policies)
			if all := strings.Join(errs, "\n"); !strings.Contains(all, c.err) {
				t.Errorf("errors %q", all)
			}
			c.check(t, e)
		})
	}
}

func TestReasons(t *testing.T) {
	e := small()
	load(t, e, `{metadata: {name: guard}, spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [
		{action: Pass, from: [{namespaces: {matchLabels: {team: a}}}]}, {name: no-db, action: Deny, from: [{namespaces: {}}]}]}}
---
{spec: {podSelector: {matchLabels: {app: front}}, ingress: [{from: [{podSelector: {}}]}]}}`)
	e.Compile()
	for _, c := range []struct{ probe, want string }{
		{"front < 10.1.0.1 tcp 80", "denied by ClusterNetworkPolicy guard ingress rule 2 (no-db)"},
		{"front < 10.0.0.2 tcp 80", "allowed by NetworkPolicy web/p1"},
		{"front < 8.8.8.8 tcp 80", "denied by default deny of NetworkPolicy web/p1"},
		{"back < 8.8.8.8 tcp 80", "allowed by default: no rule matches"},
		{"front > 8.8.8.8 tcp 80", "allowed: no policy selects the pod for this direction"},
	} {
		if d, _ := decide(e, parseProbe(t, c.probe)); d.Why != c.want {
			t.Errorf("%s: %q, want %q", c.probe, d.Why, c.want)
		}
	}
	if s := e.Reason(1 << 30); s != "" {
		t.Errorf("unknown id: %q", s)
	}
}
