package network

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns the data plane's metrics. They read the maps when scraped.
func (n *Network) Collectors() []prometheus.Collector { return []prometheus.Collector{collector{n}} }

var (
	dropPackets = prometheus.NewDesc("kombi_network_dropped_packets_total",
		"Packets and connection attempts that the data plane did not let through.", []string{"reason"}, nil)
	dropBytes = prometheus.NewDesc("kombi_network_dropped_bytes_total",
		"Bytes of the packets that the data plane did not let through.", []string{"reason"}, nil)
	podCount = prometheus.NewDesc("kombi_network_pods",
		"Pods attached to this node's network.", nil, nil)
	frontendCount = prometheus.NewDesc("kombi_network_service_frontends",
		"Addresses and ports that the data plane translates.", nil, nil)
	backendCount = prometheus.NewDesc("kombi_network_service_backends",
		"Backends of all frontends.", nil, nil)
)

type collector struct{ n *Network }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{dropPackets, dropBytes, podCount, frontendCount, backendCount} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.n.load.Lock()
	defer c.n.load.Unlock()
	if !c.n.loaded {
		return
	}
	drops, err := c.n.dp.Drops()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(dropPackets, err)
	}
	for _, d := range drops {
		ch <- prometheus.MustNewConstMetric(dropPackets, prometheus.CounterValue, float64(d.Packets), d.Reason)
		ch <- prometheus.MustNewConstMetric(dropBytes, prometheus.CounterValue, float64(d.Bytes), d.Reason)
	}
	front, back := c.n.dp.Services().Len()
	ch <- prometheus.MustNewConstMetric(podCount, prometheus.GaugeValue, float64(c.n.pods.count()))
	ch <- prometheus.MustNewConstMetric(frontendCount, prometheus.GaugeValue, float64(front))
	ch <- prometheus.MustNewConstMetric(backendCount, prometheus.GaugeValue, float64(back))
}
