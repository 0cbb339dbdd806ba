package dns

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
)

// corefile is everything that a configuration is made of.
type corefile struct {
	id        string // of the component, for our own directives
	listen    []netip.AddrPort
	domain    string
	reverse   []string // reverse zones of the cluster's networks
	upstreams Upstreams
	snippets  []snippet
}

// String returns the configuration in CoreDNS's language. Equal inputs give equal
// texts.
func (c corefile) String() string {
	var b strings.Builder
	byPort := map[uint16][]string{}
	for _, a := range c.listen {
		byPort[a.Port()] = append(byPort[a.Port()], a.Addr().String())
	}
	for i, port := range slices.Sorted(maps.Keys(byPort)) {
		c.writeDefault(&b, port, byPort[port])
		for _, s := range c.snippets {
			for _, block := range s.servers {
				writeServer(&b, block, port, byPort[port], i == 0)
			}
		}
	}
	return b.String()
}

// writeDefault writes the server block for all names that no other block is for.
func (c corefile) writeDefault(b *strings.Builder, port uint16, addrs []string) {
	override := map[string][]caddyfile.Token{}
	for _, s := range c.snippets {
		for name, tokens := range s.override {
			override[name] = append(override[name], tokens...)
		}
	}
	line := func(directive string, format string, args ...any) {
		if _, taken := override[directive]; !taken {
			fmt.Fprintf(b, "    "+directive+format+"\n", args...)
		}
	}

	fmt.Fprintf(b, ".:%d {\n", port)
	line("bind", " %s", strings.Join(addrs, " "))
	line(dirMetrics, " %s", c.id)
	// One line when a resolver begins to fail, and a count later, instead of one
	// for each query.
	line("errors", " {\n        consolidate 5m \".*\" warning show_first\n    }")
	line("loadbalance", " round_robin")
	// The cluster's own names come from memory; caching them would only make
	// changes visible later.
	own := strings.Join(append([]string{c.domain}, c.reverse...), " ")
	line("cache", " 30 {\n        disable success %[1]s\n        disable denial %[1]s\n    }", own)
	line(dirHosts, " %s", c.id)
	line(dirCluster, " %s", c.id)
	line(dirReverse, " %s", c.id)
	for _, name := range slices.Sorted(maps.Keys(override)) {
		writeTokens(b, override[name])
	}
	if len(c.upstreams.Servers) > 0 && !forwardsAll(override["forward"]) {
		// After those of overrides: the first that matches a name is taken.
		fmt.Fprintf(b, "    forward . %s {\n        policy sequential\n    }\n", strings.Join(c.upstreams.Servers, " "))
	}
	line(dirNowhere, " %s", c.id)
	b.WriteString("}\n")
}

// forwardsAll tells whether the directives forward the root zone.
func forwardsAll(tokens []caddyfile.Token) bool {
	for i, t := range tokens {
		first := i == 0 || tokens[i-1].Line != t.Line
		if first && t.Text == "forward" && i+1 < len(tokens) && tokens[i+1].Text == "." {
			return true
		}
	}
	return false
}

// writeServer writes a server block of coredns-custom for one port. Blocks whose
// keys name a port are only written once, with the first.
func writeServer(b *strings.Builder, block caddyfile.ServerBlock, port uint16, addrs []string, first bool) {
	var keys []string
	for _, key := range block.Keys {
		_, explicit, err := plugin.SplitHostPort(strings.TrimPrefix(key, "dns://"))
		switch {
		case err == nil && explicit == "":
			keys = append(keys, withPort(key, port))
		case first: // also a malformed key, for CoreDNS to complain about
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return
	}
	fmt.Fprintf(b, "%s {\n    bind %s\n", strings.Join(keys, " "), strings.Join(addrs, " "))
	for _, name := range slices.Sorted(maps.Keys(block.Tokens)) {
		writeTokens(b, block.Tokens[name])
	}
	b.WriteString("}\n")
}

func withPort(key string, port uint16) string {
	if ip := net.ParseIP(key); ip != nil && ip.To4() == nil {
		return net.JoinHostPort(key, strconv.Itoa(int(port)))
	}
	return key + ":" + strconv.Itoa(int(port))
}

// writeTokens writes the tokens of one directive, line by line as they were.
func writeTokens(b *strings.Builder, tokens []caddyfile.Token) {
	for i, t := range tokens {
		switch {
		case i == 0:
			b.WriteString("    ")
		case tokens[i-1].File == t.File && tokens[i-1].Line+strings.Count(tokens[i-1].Text, "\n") == t.Line:
			b.WriteString(" ")
		default:
			b.WriteString("\n    ")
		}
		b.WriteString(quote(t.Text))
	}
	b.WriteString("\n")
}

// quote writes a token so that CoreDNS reads the same token again.
func quote(text string) string {
	if text != "" && !strings.ContainsAny(text, " \t\r\n#") && !strings.HasPrefix(text, `"`) {
		return text
	}
	return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"`
}
