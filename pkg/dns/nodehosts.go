package dns

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// nodeTTL is how long answers about nodes may be kept, in seconds, as on k3s.
const nodeTTL = 60

// nodeHosts answers with the addresses of nodes for their names, and the other
// way round, as the NodeHosts file of k3s does. Names of nodes often are in no
// other DNS. It is the store of a reflector, and keeps only names and addresses.
type nodeHosts struct {
	table atomic.Pointer[hostTable]

	mu    sync.Mutex
	nodes map[string][]netip.Addr // node name to addresses
}

// hostTable is what queries are answered from; it is never changed.
type hostTable struct {
	byName map[string][]netip.Addr // fully qualified, lower case
	byAddr map[netip.Addr]string
}

func newNodeHosts() *nodeHosts {
	h := &nodeHosts{nodes: map[string][]netip.Addr{}}
	h.table.Store(&hostTable{})
	return h
}

// follow keeps the table current until ctx is done.
func (h *nodeHosts) follow(ctx context.Context, client kubernetes.Interface) {
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Nodes().Watch(ctx, o)
		},
	}, client)
	const name = "DNS nodes"
	cache.NewReflectorWithOptions(source, &corev1.Node{}, h, cache.ReflectorOptions{Name: name, TypeDescription: name}).RunWithContext(ctx)
}

// handler answers for names and addresses of nodes and leaves the rest to next.
func (h *nodeHosts) handler(next plugin.Handler) plugin.Handler {
	return plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		state := request.Request{W: w, Req: r}
		answers, ours := h.table.Load().lookup(state.Name(), state.QName(), state.QType())
		if !ours {
			return plugin.NextOrFailure(dirHosts, next, ctx, w, r)
		}
		m := new(dns.Msg).SetReply(r)
		m.Authoritative = true
		m.Answer = answers
		// A write error means that the client is gone.
		_ = w.WriteMsg(m)
		return dns.RcodeSuccess, nil
	})
}

// lookup returns the records of a node; ours is false when the name is no node's.
// It is true without records for types that nodes have none of.
func (t *hostTable) lookup(name, asked string, qtype uint16) (answers []dns.RR, ours bool) {
	header := func(rrtype uint16) dns.RR_Header {
		return dns.RR_Header{Name: asked, Rrtype: rrtype, Class: dns.ClassINET, Ttl: nodeTTL}
	}
	if addrs, ok := t.byName[name]; ok {
		for _, a := range addrs {
			switch {
			case qtype == dns.TypeA && a.Is4():
				answers = append(answers, &dns.A{Hdr: header(dns.TypeA), A: a.AsSlice()})
			case qtype == dns.TypeAAAA && a.Is6():
				answers = append(answers, &dns.AAAA{Hdr: header(dns.TypeAAAA), AAAA: a.AsSlice()})
			}
		}
		return answers, true
	}
	if qtype != dns.TypePTR || len(t.byAddr) == 0 {
		return nil, false
	}
	addr, err := netip.ParseAddr(dnsutil.ExtractAddressFromReverse(name))
	if err != nil {
		return nil, false
	}
	node, ok := t.byAddr[addr.Unmap()]
	if !ok {
		return nil, false
	}
	return []dns.RR{&dns.PTR{Hdr: header(dns.TypePTR), Ptr: node}}, true
}

// Add implements cache.ReflectorStore.
func (h *nodeHosts) Add(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	addrs := nodeAddresses(node)
	if !slices.Equal(h.nodes[node.Name], addrs) { // most updates are heartbeats
		h.nodes[node.Name] = addrs
		h.rebuild()
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (h *nodeHosts) Update(obj any) error { return h.Add(obj) }

// Delete implements cache.ReflectorStore.
func (h *nodeHosts) Delete(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.nodes, node.Name)
	h.rebuild()
	return nil
}

// Replace implements cache.ReflectorStore.
func (h *nodeHosts) Replace(list []any, _ string) error {
	nodes := make(map[string][]netip.Addr, len(list))
	for _, obj := range list {
		if node, ok := obj.(*corev1.Node); ok {
			nodes[node.Name] = nodeAddresses(node)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nodes = nodes
	h.rebuild()
	return nil
}

// Resync implements cache.ReflectorStore.
func (h *nodeHosts) Resync() error { return nil }

// rebuild makes the table of h.nodes; h.mu is held.
func (h *nodeHosts) rebuild() {
	t := &hostTable{byName: make(map[string][]netip.Addr, len(h.nodes)), byAddr: make(map[netip.Addr]string, len(h.nodes))}
	for _, name := range slices.Sorted(maps.Keys(h.nodes)) {
		fqdn := dns.Fqdn(strings.ToLower(name))
		t.byName[fqdn] = h.nodes[name]
		for _, a := range h.nodes[name] {
			if _, taken := t.byAddr[a]; !taken {
				t.byAddr[a] = fqdn
			}
		}
	}
	h.table.Store(t)
}

// nodeAddresses returns the internal addresses of a node.
func nodeAddresses(node *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs
}
