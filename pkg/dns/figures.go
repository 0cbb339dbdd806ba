package dns

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

// figures passes CoreDNS's metrics on to the registry of the Kubernetes parts, so
// that one endpoint has them all. CoreDNS enters them into a registry of its own
// choice. It is a collector that describes nothing beforehand, as the labels of
// CoreDNS's plugins are theirs.
type figures struct{ from prometheus.Gatherer }

// coreDNSPrefix begins the name of everything that CoreDNS counts.
const coreDNSPrefix = "coredns_"

// Describe implements prometheus.Collector.
func (figures) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f figures) Collect(out chan<- prometheus.Metric) {
	families, err := f.from.Gather()
	if err != nil && len(families) == 0 {
		out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), coreDNSPrefix) {
			continue
		}
		desc := prometheus.NewDesc(family.GetName(), family.GetHelp(), nil, nil)
		for _, m := range family.Metric {
			out <- figure{desc, m}
		}
	}
}

// figure is one gathered metric.
type figure struct {
	desc *prometheus.Desc
	m    *dto.Metric
}

// Desc implements prometheus.Metric.
func (f figure) Desc() *prometheus.Desc { return f.desc }

// Write implements prometheus.Metric.
func (f figure) Write(out *dto.Metric) error {
	proto.Merge(out, f.m)
	return nil
}
