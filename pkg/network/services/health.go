package services

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// HealthChecks returns the ports on which nodes tell load balancers outside whether they
// have endpoints of a Service, and how many this node has. Services with the external
// traffic policy Local have such ports.
func (t *Table) HealthChecks() (ports map[types.NamespacedName]uint16, endpoints map[types.NamespacedName]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ports, endpoints = map[types.NamespacedName]uint16{}, map[types.NamespacedName]int{}
	for key, s := range t.services {
		if s.Spec.HealthCheckNodePort == 0 {
			continue
		}
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		ports[name] = uint16(s.Spec.HealthCheckNodePort)
		local := map[netip.Addr]bool{}
		for _, port := range s.Spec.Ports {
			for _, family := range families(addrs(t.cfg, s.Spec.ClusterIPs)) {
				for _, b := range usable(onNode(collect(t.cfg, t.slices[key], port, family))) {
					local[b.Addr()] = true
				}
			}
		}
		endpoints[name] = len(local)
	}
	return ports, endpoints
}
