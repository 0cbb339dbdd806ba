package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kombi-k8s/kombi/pkg/network/datapath"
	"github.com/kombi-k8s/kombi/pkg/network/policy"
)

// podWait is how long a new pod waits for its Pod object, whose labels decide
// about its policy.
const podWait = 10 * time.Second

// enforcer brings network policy into the data plane. Its engine decides, and
// enforcer orders the writes. Nothing is ever opened by a restart: until the API is
// known again, the sets of rules of the run before stay in force.
type enforcer struct {
	log      *slog.Logger
	dp       *datapath.Datapath
	nodeName string

	ready   chan struct{} // closed when all policies are in force
	changed chan struct{} // holds one element when there is something to do

	mu       sync.Mutex
	engine   *policy.Engine
	policies map[string]bool // known policies; without any, pods are not followed
	partial  bool            // pods are just being listed; to decide now would cut off the rest
	attached map[string]*attachedPod
	local    map[string]localPod // pods of this node as the API shows them, by namespace/name
	arrived  chan struct{}       // closed and replaced when one comes or partial ends
	left     []*policy.Update    // what could not be written yet
	sick     error
}

// attachedPod is a pod of this node, by namespace/name. A pod that was made anew may be
// attached before the one before is gone.
type attachedPod struct {
	addrs   []netip.Addr
	deleted bool // its object is gone, but not yet its network
}

// localPod is a pod of this node as the API shows it.
type localPod struct {
	uid   types.UID
	facts policy.Pod
}

func newEnforcer(opts Options, dp *datapath.Datapath) *enforcer {
	e := &enforcer{
		log: opts.Log, dp: dp, nodeName: opts.NodeName,
		ready: make(chan struct{}), changed: make(chan struct{}, 1), arrived: make(chan struct{}),
		engine:   policy.New(dp.Policy().FirstID()),
		policies: map[string]bool{}, attached: map[string]*attachedPod{}, local: map[string]localPod{},
	}
	// There are no pods behind the cluster's DNS address, but policies name them.
	if len(opts.NodeLocalAddrs) > 0 {
		e.engine.SetPod(policy.Pod{
			Namespace: "kube-system", Name: "(dns)", Labels: map[string]string{"k8s-app": "kube-dns"}, Addrs: opts.NodeLocalAddrs,
			Ports: []policy.NamedPort{{Name: "dns", Proto: policy.UDP, Port: 53}, {Name: "dns-tcp", Proto: policy.TCP, Port: 53}},
		})
	}
	return e
}

// change tells the engine something, under the lock, and has it brought into the data plane.
func (e *enforcer) change(tell func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	tell()
	e.mark()
}

func (e *enforcer) mark() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// setPod takes over what the API says of a pod.
func (e *enforcer) setPod(p *corev1.Pod) {
	e.change(func() {
		key := p.Namespace + "/" + p.Name
		facts := podFacts(p, e.nodeName)
		if a := e.attached[key]; a != nil {
			a.deleted = false
		}
		if facts.Local {
			if e.local[key].uid != p.UID {
				e.wake()
			}
			e.local[key] = localPod{p.UID, facts}
		}
		e.tell(key, facts)
	})
}

// wake lets those look again who wait for a pod.
func (e *enforcer) wake() {
	close(e.arrived)
	e.arrived = make(chan struct{})
}

// tell tells the engine of a pod, with the addresses that it was given here: they
// come to the API only later.
func (e *enforcer) tell(key string, facts policy.Pod) {
	if a := e.attached[key]; a != nil {
		facts.Addrs = union(facts.Addrs, a.addrs)
	}
	e.engine.SetPod(facts)
}

// deletePod forgets a pod, unless it is still attached here: then its policy stays in force.
func (e *enforcer) deletePod(p *corev1.Pod) {
	e.change(func() {
		key := p.Namespace + "/" + p.Name
		delete(e.local, key)
		if a := e.attached[key]; a != nil {
			a.deleted = true
			return
		}
		e.engine.DeletePod(p.Namespace, p.Name)
	})
}

// await waits until policy can be decided for a new pod.
func (e *enforcer) await(ctx context.Context, namespace, name string, uid types.UID) error {
	select {
	case <-e.ready:
	case <-ctx.Done():
		return errors.New("the network policies of the cluster are not known yet; is the API up?")
	}
	patience := time.After(podWait)
	for {
		e.mu.Lock()
		known, ok := e.local[namespace+"/"+name]
		needed, partial, arrived := len(e.policies) > 0, e.partial, e.arrived
		e.mu.Unlock()
		if !needed || !partial && ok && (uid == "" || known.uid == uid) {
			return nil
		}
		select {
		case <-arrived:
		case <-patience:
			// A static pod of a node without its API has no object. What selects
			// all pods of its namespace applies to it.
			e.log.Warn("a pod is attached without knowing its labels, because the API does not show it",
				"namespace", namespace, "pod", name)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// attach puts a new pod's policy in force. The data plane knows its addresses, but
// must not pass its packets yet.
func (e *enforcer) attach(namespace, name string, addrs []netip.Addr) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adopt(namespace, name, addrs)
	return e.apply()
}

// sets are the sets of rules of an attached pod.
func (e *enforcer) sets(namespace, name string) policy.EndpointSets {
	e.mu.Lock()
	defer e.mu.Unlock()
	sets, _ := e.engine.Endpoint(namespace, name)
	return sets
}

// adopt makes the addresses of an attached pod known.
func (e *enforcer) adopt(namespace, name string, addrs []netip.Addr) {
	key := namespace + "/" + name
	a := e.attached[key]
	if a == nil {
		a = &attachedPod{}
		e.attached[key] = a
	}
	a.addrs = union(a.addrs, addrs)
	pod, ok := e.local[key]
	if !ok {
		pod.facts = policy.Pod{Namespace: namespace, Name: name, Local: true}
	}
	e.tell(key, pod.facts)
}

// detach forgets the addresses of a pod that is no longer attached.
func (e *enforcer) detach(namespace, name string, addrs []netip.Addr) {
	e.change(func() {
		key := namespace + "/" + name
		a := e.attached[key]
		if a == nil {
			return
		}
		a.addrs = slices.DeleteFunc(a.addrs, func(x netip.Addr) bool { return slices.Contains(addrs, x) })
		if len(a.addrs) > 0 {
			return
		}
		delete(e.attached, key)
		if pod, ok := e.local[key]; ok && !a.deleted {
			e.tell(key, pod.facts)
		} else {
			e.engine.DeletePod(namespace, name)
		}
	})
}

// apply brings the engine's state into the data plane. What fails is tried again by
// the next call, before anything newer.
func (e *enforcer) apply() error {
	if e.partial {
		return nil
	}
	if u := e.engine.Compile(); u != nil {
		e.left = append(e.left, u)
	}
	for len(e.left) > 0 {
		if err := e.write(e.left[0]); err != nil {
			return fmt.Errorf("network policy cannot be brought into force: %w", err)
		}
		e.left = e.left[1:]
	}
	return nil
}

// write makes the writes of an update in its order. They may be repeated.
func (e *enforcer) write(u *policy.Update) error {
	maps := e.dp.Policy()
	for _, r := range u.AddRules {
		if err := maps.PutRule(r.RuleKey, r.Verdict); err != nil {
			return err
		}
	}
	if err := e.writePeers(u.Peers); err != nil {
		return err
	}
	for _, c := range u.Endpoints {
		a := e.attached[c.Pod]
		if a == nil || c.Delete {
			continue
		}
		for _, addr := range a.addrs {
			if err := e.dp.SetEndpointPolicy(addr, c.Sets); err != nil {
				return err
			}
		}
	}
	if len(u.Settle)+len(u.DeleteRules) > 0 {
		// No program may still be between reading a class or a set and its rule.
		datapath.WaitForPrograms()
	}
	if err := e.writePeers(u.Settle); err != nil {
		return err
	}
	if len(u.Settle) > 0 && len(u.DeleteRules) > 0 {
		datapath.WaitForPrograms()
	}
	// Before the rules go, so that no connection lives by one that is gone.
	if err := maps.NextGeneration(); err != nil {
		return err
	}
	for _, k := range u.DeleteRules {
		if err := maps.DeleteRule(k); err != nil {
			return err
		}
	}
	return nil
}

func (e *enforcer) writePeers(changes []policy.PeerChange) error {
	for _, c := range changes {
		var err error
		if c.Delete {
			err = e.dp.Policy().DeleteClass(c.Prefix)
		} else {
			err = e.dp.Policy().PutClass(c.Prefix, c.Class)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeOver puts this run's policy in force for all pods that are attached, and removes
// that of the run before.
func (e *enforcer) takeOver() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.apply(); err != nil {
		return err
	}
	for key, a := range e.attached {
		sets, _ := e.engine.Endpoint(splitKey(key))
		for _, addr := range a.addrs {
			if err := e.dp.SetEndpointPolicy(addr, sets); err != nil {
				return err
			}
		}
	}
	if err := e.dp.Policy().NextGeneration(); err != nil {
		return err
	}
	return e.dp.Policy().DropOldEpochs()
}

// healthy returns why policy is not what the API asks for.
func (e *enforcer) healthy() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sick
}
