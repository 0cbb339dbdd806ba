package datapath

import "github.com/kombi-k8s/kombi/pkg/network/bpf"

// reasons name the drop counters, in the order that the programs number them.
var reasons = [...]string{
	"spoofed_source", "no_free_port", "no_local_backend", "refused",
	"fragment", "rewrite_failed", "node_local_address", "flow_table_full", "policy", "no_such_node", "source_range",
}

// Drop counts packets that were not let through for one reason.
type Drop struct {
	Reason         string
	Packets, Bytes uint64
}

// Drops returns all counters since the maps were made.
func (d *Datapath) Drops() ([]Drop, error) {
	out := make([]Drop, 0, len(reasons))
	for i, r := range reasons {
		var perCPU []bpf.KombiCounter
		if err := d.objs.Drops.Lookup(uint32(i), &perCPU); err != nil {
			return nil, err
		}
		sum := Drop{Reason: r}
		for _, c := range perCPU {
			sum.Packets += c.Packets
			sum.Bytes += c.Bytes
		}
		out = append(out, sum)
	}
	return out, nil
}
