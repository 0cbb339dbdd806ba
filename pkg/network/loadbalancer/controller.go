package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// Options configure the controller.
type Options struct {
	Log  *slog.Logger
	Kube *rest.Config
	// TakenPorts are TCP ports that nodes need themselves: those of the API, the
	// kubelet and SSH.
	TakenPorts []int32
}

// Controller is the component "load-balancer". One server of a cluster runs it.
type Controller struct {
	opts   Options
	client kubernetes.Interface // nil: made from opts.Kube
}

// New returns the component.
func New(opts Options) *Controller { return &Controller{opts: opts} }

// Name implements component.Component.
func (c *Controller) Name() string { return "load-balancer" }

// Needs implements component.Component.
func (c *Controller) Needs() []string { return []string{"rbac"} }

// Restartable implements component.Component.
func (c *Controller) Restartable() bool { return true }

// run is the state of one run.
type run struct {
	opts     Options
	client   kubernetes.Interface
	services cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer
	slices   cache.SharedIndexInformer // runs once a Service needs it
	events   record.EventRecorder
	changed  chan struct{}
	told     map[string]int32 // Services whose conflict was reported
}

// Run implements component.Component.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	client := c.client
	if client == nil {
		var err error
		if client, err = kubernetes.NewForConfig(c.opts.Kube); err != nil {
			return fmt.Errorf("load-balancer: %w", err)
		}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: client.CoreV1().Events("")})
	r := &run{
		opts: c.opts, client: client, changed: make(chan struct{}, 1), told: map[string]int32{},
		events: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kombi-load-balancer"}),
	}
	balanced := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.type", string(corev1.ServiceTypeLoadBalancer)).String()
	}))
	all := informers.NewSharedInformerFactory(client, 0)
	r.services, r.nodes = balanced.Core().V1().Services().Informer(), all.Core().V1().Nodes().Informer()
	r.slices = all.Discovery().V1().EndpointSlices().Informer()
	mark := func(any) {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
	for _, i := range []cache.SharedIndexInformer{r.services, r.nodes, r.slices} {
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: mark, UpdateFunc: func(_, o any) { mark(o) }, DeleteFunc: mark,
		}); err != nil {
			return err
		}
	}
	go r.services.RunWithContext(ctx)
	ready()
	return r.loop(ctx)
}

// loop settles everything whenever something changed. Nodes are followed once there is a
// Service of the type, EndpointSlices once one has the policy Local.
func (r *run) loop(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), r.services.HasSynced) {
		return nil
	}
	following, local := false, false
	for {
		list := r.balanced()
		if len(list) > 0 && !following {
			following = true
			go r.nodes.RunWithContext(ctx)
			if !cache.WaitForCacheSync(ctx.Done(), r.nodes.HasSynced) {
				return nil
			}
		}
		if !local && slices.ContainsFunc(list, func(s *corev1.Service) bool {
			return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		}) {
			local = true
			go r.slices.RunWithContext(ctx)
			if !cache.WaitForCacheSync(ctx.Done(), r.slices.HasSynced) {
				return nil
			}
		}
		var again <-chan time.Time
		if err := r.settle(ctx, list); err != nil {
			r.opts.Log.Warn("addresses of load balancers cannot be written; trying again", "error", err)
			again = time.After(2 * time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		case <-again:
		}
	}
}

func (r *run) balanced() (out []*corev1.Service) {
	for _, o := range r.services.GetStore().List() {
		if s, ok := o.(*corev1.Service); ok && ours(s) {
			out = append(out, s)
		}
	}
	return out
}

func (r *run) settle(ctx context.Context, list []*corev1.Service) error {
	var nodes []*corev1.Node
	for _, o := range r.nodes.GetStore().List() {
		if n, ok := o.(*corev1.Node); ok {
			nodes = append(nodes, n)
		}
	}
	var errs []error
	for _, s := range list {
		errs = append(errs, r.write(ctx, s, r.wanted(s, nodes)))
	}
	return errors.Join(errs...)
}

// wanted is the addresses that the Service should have, and says why it has none.
func (r *run) wanted(s *corev1.Service, nodes []*corev1.Node) []corev1.LoadBalancerIngress {
	key := s.Namespace + "/" + s.Name
	if port := conflict(s, r.opts.TakenPorts); port != 0 {
		if r.told[key] != port {
			r.told[key] = port
			r.events.Eventf(s, corev1.EventTypeWarning, "PortNeededByNodes",
				"port %d is one that the nodes need themselves, so this Service gets no address: choose another port, or another loadBalancerClass", port)
		}
		return nil
	}
	delete(r.told, key)
	return assign(s, nodes, func(node string) bool { return r.serves(s, node) })
}

// serves tells whether the node has a ready endpoint of the Service.
func (r *run) serves(s *corev1.Service, node string) bool {
	of := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.Name})
	for _, o := range r.slices.GetStore().List() {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || slice.Namespace != s.Namespace || !of.Matches(labels.Set(slice.Labels)) {
			continue
		}
		for _, ep := range slice.Endpoints {
			if ep.NodeName != nil && *ep.NodeName == node && (ep.Conditions.Ready == nil || *ep.Conditions.Ready) {
				return true
			}
		}
	}
	return false
}

func (r *run) write(ctx context.Context, s *corev1.Service, want []corev1.LoadBalancerIngress) error {
	if apiequality.Semantic.DeepEqual(s.Status.LoadBalancer.Ingress, want) {
		return nil
	}
	next := s.DeepCopy()
	next.Status.LoadBalancer.Ingress = want
	_, err := r.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // a newer one is on its way
	}
	if err == nil && len(want) > 0 {
		r.events.Eventf(s, corev1.EventTypeNormal, "EnsuredLoadBalancer", "%d nodes answer for this Service", len(want))
	}
	return err
}
