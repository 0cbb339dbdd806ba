package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
)

// SetNamespace adds a namespace or changes its labels. Until a namespace is set, its
// pods count as in one without labels.
func (e *Engine) SetNamespace(name string, lbls map[string]string) {
	ns := e.namespace(name)
	ns.known = true
	e.relabel(name, ns, lbls)
}

// DeleteNamespace removes a namespace; its pods and policies are deleted on their own.
func (e *Engine) DeleteNamespace(name string) {
	if ns := e.namespaces[name]; ns != nil {
		ns.known = false
		e.relabel(name, ns, nil)
		e.forget(name)
	}
}

// forget drops a namespace that nothing needs.
func (e *Engine) forget(name string) {
	if ns := e.namespaces[name]; !ns.known && len(ns.pods) == 0 && len(ns.policies) == 0 {
		delete(e.namespaces, name)
		e.peers.forgetNamespace(name)
	}
}

func (e *Engine) relabel(name string, ns *namespace, lbls map[string]string) {
	if maps.Equal(ns.labels, lbls) {
		return
	}
	ns.labels = lbls
	e.peers.forgetNamespace(name)
	for _, p := range ns.pods {
		e.peers.stalePods[p] = struct{}{}
		e.touch(p)
	}
}

// SetPod adds or replaces a pod.
func (e *Engine) SetPod(in Pod) {
	in = tidy(in)
	key := in.Namespace + "/" + in.Name
	p := e.pods[key]
	if p != nil && reflect.DeepEqual(p.Pod, in) {
		return
	}
	if p == nil {
		p = &pod{ns: e.namespace(in.Namespace)}
		e.pods[key], p.ns.pods[in.Name] = p, p
	} else {
		e.peers.detach(p)
		e.touch(p)
	}
	p.Pod = in
	e.peers.attach(p)
	e.touch(p)
}

// tidy returns the pod with addresses and ports in a canonical form.
func tidy(p Pod) Pod {
	p.Addrs = plainAddrs(p.Addrs)
	p.Ports = slices.DeleteFunc(slices.Clone(p.Ports), func(n NamedPort) bool { return n.Name == "" || n.Proto != TCP && n.Proto != UDP && n.Proto != SCTP })
	slices.SortFunc(p.Ports, func(a, b NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	p.Ports = slices.Compact(p.Ports)
	return p
}

func plainAddrs(in []netip.Addr) (out []netip.Addr) {
	for _, a := range in {
		if a.IsValid() {
			out = append(out, plain(a))
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// DeletePod removes a pod.
func (e *Engine) DeletePod(namespace, name string) {
	key := namespace + "/" + name
	p := e.pods[key]
	if p == nil {
		return
	}
	e.peers.detach(p)
	e.touch(p)
	delete(e.pods, key)
	delete(p.ns.pods, name)
	e.forget(namespace)
}

// touch notes that what governs the pod may change.
func (e *Engine) touch(p *pod) {
	if p.isEndpoint() {
		e.staleEndpoints[p.Namespace+"/"+p.Name] = struct{}{}
	}
}

// SetNode adds or replaces a node.
func (e *Engine) SetNode(name string, lbls map[string]string, addrs []netip.Addr) {
	addrs = plainAddrs(addrs)
	n := e.nodes[name]
	if n != nil && maps.Equal(n.labels, lbls) && slices.Equal(n.addrs, addrs) {
		return
	}
	if n == nil {
		n = &node{}
		e.nodes[name] = n
	} else {
		e.peers.detachNode(n)
	}
	n.labels, n.addrs = lbls, addrs
	e.peers.attachNode(n)
}

// DeleteNode removes a node.
func (e *Engine) DeleteNode(name string) {
	if n := e.nodes[name]; n != nil {
		e.peers.detachNode(n)
		delete(e.nodes, name)
	}
}
