// Package metrics serves metrics.k8s.io/v1beta1 from inside the process, so that
// kubectl top and the HorizontalPodAutoscaler work without a metrics-server pod.
//
// It owns the scrape loop over the kubelets and the last two points of every
// node and container; it registers its API on an API server that somebody else
// runs (see [Metrics.InstallAPI]) and opens no port of its own. The format, the
// calculation of rates and the API itself are metrics-server's.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/metrics-server/pkg/scraper/client"
	"sigs.k8s.io/metrics-server/pkg/scraper/client/resource"
	"sigs.k8s.io/metrics-server/pkg/storage"
)

// Bounds and defaults of [Options].
const (
	// DefaultResolution is the time between two scrapes.
	DefaultResolution = 15 * time.Second
	// MinResolution is the shortest accepted one: kubelets refresh their own
	// figures every ten seconds.
	MinResolution = 10 * time.Second

	// warmUpInterval is the time between scrapes until the first node has the
	// two points that a rate needs, so that kubectl top answers soon after the
	// start and not only after two full periods.
	warmUpInterval = 5 * time.Second
	// missedPeriods is how many periods without a finished round make the
	// component unhealthy.
	missedPeriods = 4
)

// Options are what [New] needs.
type Options struct {
	// Log receives one line for each change of state; required.
	Log *slog.Logger
	// Kube reaches the API server, with the right to list and watch nodes and
	// pods (metadata only). Nothing is connected before Run. Required.
	Kube *rest.Config
	// Kubelet holds the credentials, the CA bundle and, where nodes are reached
	// through a tunnel, the Dial function for requests to kubelets; its Host is
	// not used. nil means those of Kube. Kubelets' certificates are verified.
	Kubelet *rest.Config
	// Resolution is the time between two scrapes, at least [MinResolution];
	// 0 means [DefaultResolution].
	Resolution time.Duration
}

// Metrics is the component "metrics".
type Metrics struct {
	log        *slog.Logger
	resolution time.Duration
	caches     *caches
	kubelets   client.KubeletMetricsGetter
	store      storage.Storage

	failing   map[string]string // node name to its last error; used by the scrape loop only
	running   atomic.Bool
	lastRound atomic.Int64 // Unix nanoseconds of the end of the last round of scrapes
}

// New checks the options and prepares the component; it connects to nothing.
func New(opts Options) (*Metrics, error) {
	if opts.Log == nil || opts.Kube == nil {
		return nil, errors.New("metrics: Log and Kube are required")
	}
	if opts.Resolution == 0 {
		opts.Resolution = DefaultResolution
	}
	if opts.Resolution < MinResolution {
		return nil, fmt.Errorf("metrics: the resolution %s is below %s, the period in which kubelets refresh their own figures", opts.Resolution, MinResolution)
	}

	kube, err := kubernetes.NewForConfig(protobuf(opts.Kube))
	if err != nil {
		return nil, fmt.Errorf("metrics: API client: %w", err)
	}
	meta, err := metadata.NewForConfig(opts.Kube)
	if err != nil {
		return nil, fmt.Errorf("metrics: API metadata client: %w", err)
	}

	kubelet := opts.Kubelet
	if kubelet == nil {
		kubelet = opts.Kube
	}
	// Insecure is refused and not just ignored: somebody who sets it should know
	// that it has no place here.
	if kubelet.Insecure {
		return nil, errors.New("metrics: kubelets are only scraped with certificate verification; give a CA bundle instead of Insecure")
	}
	kubelet = rest.CopyConfig(kubelet)
	kubelet.Timeout = scrapeTimeout(opts.Resolution)
	kubelets, err := resource.NewForConfig(&client.KubeletClientConfig{
		Client: *kubelet,
		// Names come last: node names seldom resolve on edge networks.
		AddressTypePriority: []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeExternalIP, corev1.NodeExternalDNS, corev1.NodeHostName},
		Scheme:              "https",
		DefaultPort:         10250,
		UseNodeStatusPort:   true,
	})
	if err != nil {
		return nil, fmt.Errorf("metrics: kubelet client: %w", err)
	}

	registerSelfMetrics()
	return &Metrics{
		log:        opts.Log,
		resolution: opts.Resolution,
		caches:     newCaches(kube, meta),
		kubelets:   kubelets,
		store:      storage.NewStorage(opts.Resolution),
		failing:    map[string]string{},
	}, nil
}

// Name implements component.Component.
func (m *Metrics) Name() string { return "metrics" }

// Needs implements component.Component.
func (m *Metrics) Needs() []string { return []string{"apiserver", "rbac"} }

// Restartable tells that Run may be called again after a failure.
func (m *Metrics) Restartable() bool { return true }

// Run follows nodes and pods and scrapes until ctx is done. It is ready as soon
// as it knows the nodes and pods; the first figures follow some seconds later.
func (m *Metrics) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	followed := m.caches.follow(ctx)
	defer func() { cancel(); followed() }()

	if err := m.caches.waitForSync(ctx); err != nil {
		return nil // only ends with ctx
	}
	m.lastRound.Store(time.Now().UnixNano())
	m.running.Store(true)
	defer m.running.Store(false)
	ready()
	m.scrapeLoop(ctx)
	return nil
}

// Healthy reports a scrape loop that hangs. A kubelet that does not answer is no
// reason: it is logged, and its node and pods are left out of the answers.
func (m *Metrics) Healthy() error {
	if !m.running.Load() {
		return nil
	}
	if late := time.Since(time.Unix(0, m.lastRound.Load())); late > missedPeriods*m.resolution {
		return fmt.Errorf("no round of kubelet scrapes has finished for %s; kubectl top and autoscalers see old figures", late.Round(time.Second))
	}
	return nil
}

// protobuf returns a copy of c that asks for the compact encoding.
func protobuf(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return c
}
