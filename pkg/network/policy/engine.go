package policy

import (
	"net/netip"
	"reflect"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Engine holds what it was told of the cluster and compiles it. It is not safe for
// concurrent use. Objects that it is given must not be changed afterwards.
//
// The setters only note what may have changed; Compile does the work.
type Engine struct {
	lastID, lastTrait uint32
	lastRev           uint64
	round             uint64 // marks what a walk over sets or classes has visited
	reasons           map[string]uint32
	reasonText        map[uint32]string

	namespaces map[string]*namespace
	pods       map[string]*pod // namespace/name
	nodes      map[string]*node
	// The cluster policies and their objects; those of a namespace are in it.
	cluster     map[string]*policy
	clusterSpec map[string]*v1alpha2.ClusterNetworkPolicy

	peers   *peers
	sets    map[string]*set // by content
	retired []*set          // no endpoint has them since the last Compile
	// endpoints are as last compiled.
	endpoints map[string]*endpoint

	staleEndpoints map[string]struct{} // whose sets may have changed
}

type namespace struct {
	labels   labels.Set
	known    bool
	pods     map[string]*pod // by name, as the other two
	policies map[string]*policy
	specs    map[string]*networkingv1.NetworkPolicy
}

type pod struct {
	Pod
	ns     *namespace
	traits []*trait
}

// isPeer reports whether the pod's addresses are its own.
func (p *pod) isPeer() bool { return !p.HostNetwork && !p.Finished }

// isEndpoint reports whether the pod is governed here. Finished ones still are: it
// does no harm.
func (p *pod) isEndpoint() bool { return p.Local && !p.HostNetwork }

type node struct {
	labels labels.Set
	addrs  []netip.Addr
	traits []*trait
}

type endpoint struct{ sets [2]*set }

func (ep *endpoint) ids() (out EndpointSets) {
	if s := ep.sets[Ingress]; s != nil {
		out.Ingress = s.id
	}
	if s := ep.sets[Egress]; s != nil {
		out.Egress = s.id
	}
	return out
}

// New returns an empty engine. All ids that it gives out are firstID (or 1) and up;
// a caller that left tables of another process behind chooses one above theirs.
func New(firstID uint32) *Engine {
	return &Engine{
		lastID:         max(firstID, 1) - 1,
		reasons:        map[string]uint32{},
		reasonText:     map[uint32]string{0: ungoverned},
		namespaces:     map[string]*namespace{},
		pods:           map[string]*pod{},
		nodes:          map[string]*node{},
		cluster:        map[string]*policy{},
		clusterSpec:    map[string]*v1alpha2.ClusterNetworkPolicy{},
		peers:          newPeers(),
		sets:           map[string]*set{},
		endpoints:      map[string]*endpoint{},
		staleEndpoints: map[string]struct{}{},
	}
}

func (e *Engine) newID() uint32 {
	e.lastID++
	return e.lastID
}

func (e *Engine) namespace(name string) *namespace {
	ns := e.namespaces[name]
	if ns == nil {
		ns = &namespace{pods: map[string]*pod{}, policies: map[string]*policy{}, specs: map[string]*networkingv1.NetworkPolicy{}}
		e.namespaces[name] = ns
	}
	return ns
}

// SetNetworkPolicy adds or replaces a NetworkPolicy. It is in force also when there
// is an error, which joins all that is wrong; what is invalid allows nothing.
func (e *Engine) SetNetworkPolicy(np *networkingv1.NetworkPolicy) error {
	p, err := parseNetworkPolicy(np)
	ns := e.namespace(np.Namespace)
	if had := ns.specs[np.Name]; had != nil && reflect.DeepEqual(had.Spec, np.Spec) {
		return err
	}
	e.lastRev++
	p.rev = e.lastRev
	ns.policies[np.Name], ns.specs[np.Name] = p, np
	e.touchAll(ns.pods)
	return err
}

// DeleteNetworkPolicy removes a NetworkPolicy.
func (e *Engine) DeleteNetworkPolicy(namespace, name string) {
	ns := e.namespaces[namespace]
	if ns == nil || ns.policies[name] == nil {
		return
	}
	delete(ns.policies, name)
	delete(ns.specs, name)
	e.touchAll(ns.pods)
	e.forget(namespace)
}

// SetClusterNetworkPolicy adds or replaces a ClusterNetworkPolicy. It is in force
// also when there is an error, which joins all that is wrong; invalid rules fail
// closed, but a policy with an invalid subject or tier governs nothing.
func (e *Engine) SetClusterNetworkPolicy(cnp *v1alpha2.ClusterNetworkPolicy) error {
	p, err := parseClusterPolicy(cnp)
	if had := e.clusterSpec[cnp.Name]; had != nil && reflect.DeepEqual(had.Spec, cnp.Spec) {
		return err
	}
	e.lastRev++
	p.rev = e.lastRev
	e.cluster[cnp.Name], e.clusterSpec[cnp.Name] = p, cnp
	e.touchAll(e.pods)
	return err
}

// DeleteClusterNetworkPolicy removes a ClusterNetworkPolicy.
func (e *Engine) DeleteClusterNetworkPolicy(name string) {
	if e.cluster[name] != nil {
		delete(e.cluster, name)
		delete(e.clusterSpec, name)
		e.touchAll(e.pods)
	}
}

func (e *Engine) touchAll(pods map[string]*pod) {
	for _, p := range pods {
		e.touch(p)
	}
}

// Endpoint returns the sets of a local pod as of the last Compile.
func (e *Engine) Endpoint(namespace, name string) (EndpointSets, bool) {
	ep := e.endpoints[namespace+"/"+name]
	if ep == nil {
		return EndpointSets{}, false
	}
	return ep.ids(), true
}

// Reason returns why a verdict with this id was given, "" if the id is not known.
func (e *Engine) Reason(id uint32) string { return e.reasonText[id] }

// reason returns the id of a reason. Reasons are kept for good, so that flows can
// still be explained after the policy is gone.
func (e *Engine) reason(text string) uint32 {
	id, ok := e.reasons[text]
	if !ok {
		id = e.newID()
		e.reasons[text], e.reasonText[id] = id, text
	}
	return id
}
