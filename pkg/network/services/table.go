package services

import (
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Config is what a node's table depends on besides the API objects.
type Config struct {
	// NodeName decides which endpoints are local.
	NodeName string
	// Node is what the API says of the node. It may be learned later, see [Table.SetNode].
	Node Node
	// Untouched are addresses that must never be translated.
	Untouched []netip.Addr
}

// Table holds the Services, EndpointSlices and host ports of a node and computes
// which frontends follow from them. It is safe for concurrent use.
//
// Two owners may want the same frontend, for example by the same external
// address; the first one has it until it lets go.
type Table struct {
	cfg Config

	mu       sync.Mutex
	services map[string]*corev1.Service                       // namespace/name
	slices   map[string]map[string]*discoveryv1.EndpointSlice // service, then slice name
	owned    map[string]map[Frontend]Entry                    // what each owner asks for
	claims   map[Frontend][]string                            // owners by arrival
	pending  map[Frontend]struct{}
	changed  chan struct{}
}

// NewTable returns an empty table.
func NewTable(cfg Config) *Table {
	return &Table{
		cfg:      cfg,
		services: map[string]*corev1.Service{},
		slices:   map[string]map[string]*discoveryv1.EndpointSlice{},
		owned:    map[string]map[Frontend]Entry{},
		claims:   map[Frontend][]string{},
		pending:  map[Frontend]struct{}{},
		changed:  make(chan struct{}, 1),
	}
}

// Changed delivers when there are changes to take.
func (t *Table) Changed() <-chan struct{} { return t.changed }

// Take returns and forgets the frontends that changed since the last call.
func (t *Table) Take() []Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Change, 0, len(t.pending))
	for f := range t.pending {
		out = append(out, Change{Frontend: f, Entry: t.winner(f)})
	}
	clear(t.pending)
	return out
}

// Retry puts changes back that could not be applied.
func (t *Table) Retry(frontends ...Frontend) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range frontends {
		t.mark(f)
	}
}

// All returns the whole desired state and counts as taking all changes.
func (t *Table) All() map[Frontend]Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.pending)
	out := make(map[Frontend]Entry, len(t.claims))
	for f := range t.claims {
		if e := t.winner(f); e != nil {
			out[f] = *e
		}
	}
	return out
}

// Node is what Services depend on of their node.
type Node struct {
	// Zone is for endpoints that are meant for some zones.
	Zone string
	// Internal are its addresses on this machine, External those under which others
	// know it: a cloud's router turns them into internal ones.
	Internal, External []netip.Addr
}

// SetNode tells what the API says of the node.
func (t *Table) SetNode(n Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cfg.Node.Zone == n.Zone && slices.Equal(t.cfg.Node.Internal, n.Internal) && slices.Equal(t.cfg.Node.External, n.External) {
		return
	}
	t.cfg.Node = n
	for key := range t.services {
		t.recompute(key)
	}
}

// SetService adds or replaces a Service.
func (t *Table) SetService(s *corev1.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := s.Namespace + "/" + s.Name
	t.services[key] = s
	t.recompute(key)
}

// DeleteService removes a Service.
func (t *Table) DeleteService(namespace, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := namespace + "/" + name
	delete(t.services, key)
	t.recompute(key)
}

// SetSlice adds or replaces an EndpointSlice.
func (t *Table) SetSlice(s *discoveryv1.EndpointSlice) {
	name := s.Labels[discoveryv1.LabelServiceName]
	if name == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := s.Namespace + "/" + name
	if t.slices[key] == nil {
		t.slices[key] = map[string]*discoveryv1.EndpointSlice{}
	}
	t.slices[key][s.Name] = s
	t.recompute(key)
}

// DeleteSlice removes an EndpointSlice.
func (t *Table) DeleteSlice(s *discoveryv1.EndpointSlice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
	delete(t.slices[key], s.Name)
	if len(t.slices[key]) == 0 {
		delete(t.slices, key)
	}
	t.recompute(key)
}

// SetHostPorts sets the host ports of an attached pod; owner is any name for it. None removes them.
func (t *Table) SetHostPorts(owner string, ports []HostPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replace("hostport:"+owner, hostPorts(ports))
}

func (t *Table) recompute(key string) {
	var want map[Frontend]Entry
	if s := t.services[key]; s != nil {
		want = compute(t.cfg, s, t.slices[key])
	}
	t.replace(key, want)
}

// replace makes want the frontends of owner and marks those that change.
func (t *Table) replace(owner string, want map[Frontend]Entry) {
	had := t.owned[owner]
	for f := range had {
		if _, ok := want[f]; !ok {
			t.release(f, owner)
		}
	}
	if len(want) == 0 {
		delete(t.owned, owner)
	} else {
		t.owned[owner] = want
	}
	for f, e := range want {
		before, ok := had[f]
		if !ok {
			t.claims[f] = append(t.claims[f], owner)
		}
		if (!ok || !before.Equal(e)) && t.claims[f][0] == owner {
			t.mark(f)
		}
	}
}

func (t *Table) release(f Frontend, owner string) {
	owners := t.claims[f]
	for i, o := range owners {
		if o != owner {
			continue
		}
		t.claims[f] = append(owners[:i:i], owners[i+1:]...)
		if i == 0 {
			t.mark(f)
		}
		break
	}
	if len(t.claims[f]) == 0 {
		delete(t.claims, f)
	}
}

func (t *Table) winner(f Frontend) *Entry {
	if owners := t.claims[f]; len(owners) > 0 {
		e := t.owned[owners[0]][f]
		return &e
	}
	return nil
}

func (t *Table) mark(f Frontend) {
	t.pending[f] = struct{}{}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}
