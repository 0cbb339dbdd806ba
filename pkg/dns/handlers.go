package dns

import (
	"context"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// unknownReverse answers queries in the reverse zones of the cluster's networks
// that nothing before it had an answer for. Without it they would be asked of the
// node's resolvers, which cannot know and need not learn them.
func (d *DNS) unknownReverse(next plugin.Handler) plugin.Handler {
	zones := plugin.Zones(d.reverse)
	synced := d.cluster.synced
	return plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		state := request.Request{W: w, Req: r}
		zone := zones.Matches(state.Name())
		if zone == "" {
			return plugin.NextOrFailure(dirReverse, next, ctx, w, r)
		}
		if !synced() {
			return dns.RcodeServerFailure, nil
		}
		m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
		m.Authoritative = true
		m.Ns = []dns.RR{&dns.SOA{
			Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
			Ns:  "ns.dns." + zone, Mbox: "hostmaster." + zone,
			Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
		}}
		// A write error means that the client is gone.
		_ = w.WriteMsg(m)
		return dns.RcodeNameError, nil
	})
}

// nowhere is the end of the line for names that nobody can be asked about: the
// node has no resolver. It answers at once, so that clients do not wait for a
// timeout. The log has said why when the resolvers were looked for.
func nowhere(plugin.Handler) plugin.Handler {
	return plugin.HandlerFunc(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
		return dns.RcodeServerFailure, nil // without an answer written, CoreDNS writes one
	})
}
