package metrics

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/metrics-server/pkg/storage"
)

// scrapesAtOnce bounds how many kubelets are asked at the same time.
const scrapesAtOnce = 16

// scrapeTimeout leaves a round that has to wait for dead nodes time to end
// before the next one begins.
func scrapeTimeout(resolution time.Duration) time.Duration { return resolution * 2 / 3 }

// scrapeLoop runs a round of scrapes in every period until ctx is done.
func (m *Metrics) scrapeLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.caches.nodeAppeared:
			// A node that just joined is asked at once.
		case <-timer.C:
		}
		began := time.Now()
		m.scrapeAll(ctx)
		m.lastRound.Store(time.Now().UnixNano())

		period := m.resolution
		if !m.store.Ready() && m.caches.nodeCount() > 0 && m.warmingUp() {
			period = warmUpInterval
		}
		timer.Reset(max(period-time.Since(began), time.Second))
	}
}

// warmingUp bounds the eager scraping: a cluster without pods never has the pod
// points that make the store ready.
func (m *Metrics) warmingUp() bool {
	nodes, err := m.caches.nodes.List(labels.Everything())
	if err != nil {
		return false
	}
	points, err := m.store.GetNodeMetrics(nodes...)
	return err == nil && len(points) == 0 && len(m.failing) < len(nodes)
}

// scrapeAll asks every kubelet once and stores what came back.
func (m *Metrics) scrapeAll(ctx context.Context) {
	nodes, err := m.caches.nodes.List(labels.Everything())
	if err != nil || len(nodes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout(m.resolution))
	defer cancel()

	batches := make([]*storage.MetricsBatch, len(nodes))
	failures := make([]error, len(nodes))
	var scrapes sync.WaitGroup
	slots := make(chan struct{}, scrapesAtOnce)
	for i, node := range nodes {
		slots <- struct{}{}
		scrapes.Go(func() {
			defer func() { <-slots }()
			batches[i], failures[i] = m.kubelets.GetMetrics(ctx, node)
		})
	}
	scrapes.Wait()

	all := &storage.MetricsBatch{
		Nodes: map[string]storage.MetricsPoint{},
		Pods:  map[types.NamespacedName]storage.PodMetricsPoint{},
	}
	for i, node := range nodes {
		m.note(ctx, node, failures[i])
		if batches[i] == nil {
			continue
		}
		for name, point := range batches[i].Nodes {
			all.Nodes[name] = point
		}
		for name, point := range batches[i].Pods {
			all.Pods[name] = point
		}
	}
	m.forget(nodes)
	m.store.Store(all)
}

// note logs when a node begins or ceases to fail, and stays silent in between.
// A node that is not Ready cannot be expected to answer.
func (m *Metrics) note(ctx context.Context, node *corev1.Node, err error) {
	before, failing := m.failing[node.Name]
	switch {
	case err == nil && failing:
		delete(m.failing, node.Name)
		m.log.Info("kubelet answers again, metrics of its node are served", "node", node.Name)
	case err != nil && ctx.Err() != context.Canceled && before != err.Error():
		m.failing[node.Name] = err.Error()
		if isReady(node) {
			m.log.Warn("kubelet could not be scraped, its node and pods are missing in kubectl top and for autoscalers",
				"node", node.Name, "error", fmt.Errorf("GET /metrics/resource: %w", err))
		}
	}
}

// forget drops the state of nodes that are gone.
func (m *Metrics) forget(nodes []*corev1.Node) {
	if len(m.failing) == 0 {
		return
	}
	there := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		there[node.Name] = true
	}
	for name := range m.failing {
		if !there[name] {
			delete(m.failing, name)
		}
	}
}

func isReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
