package dns

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Files that name the node's resolvers, in the order in which they are tried.
// The last two hold the real ones where the first names a stub on loopback.
const (
	resolvConfFile     = "/etc/resolv.conf"
	resolvedFile       = "/run/systemd/resolve/resolv.conf"
	networkManagerFile = "/run/NetworkManager/no-stub-resolv.conf"
)

// maxUpstreams is CoreDNS's limit for one forward directive.
const maxUpstreams = 15

// Upstreams are the resolvers for names outside the cluster.
type Upstreams struct {
	// Servers are the resolvers' addresses in order of preference; empty means
	// that such names are refused.
	Servers []string
	// From is the file that Servers come from.
	From string
	// Why says, when Servers is empty, what was found and what to do.
	Why string
}

// dockerResolver is the one resolver on loopback that is known not to lead back
// here: Docker serves it in the network namespace of a container and hands
// queries to the resolvers of its host.
func dockerResolver() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 11}) }

// systemd-resolved listens on these two.
func isResolvedStub(a netip.Addr) bool {
	return a == netip.AddrFrom4([4]byte{127, 0, 0, 53}) || a == netip.AddrFrom4([4]byte{127, 0, 0, 54})
}

// FindUpstreams decides which resolvers to ask for names outside the cluster.
//
// Resolvers within own, the cluster's addresses, would send every query in a
// circle and are always left out. With an explicit file all others in it are
// taken. Without one, that is with "", those of /etc/resolv.conf are taken but
// for resolvers on loopback: nobody can tell whether these lead back here. When
// the file names systemd-resolved's stub, or nothing is left of it, the files are
// read in which systemd-resolved and NetworkManager keep the real resolvers.
// Public resolvers are never assumed.
func FindUpstreams(explicit string, own []netip.Prefix, read func(string) ([]byte, error)) Upstreams {
	files := []string{resolvConfFile, resolvedFile, networkManagerFile}
	if explicit != "" {
		files = []string{explicit}
	}
	var (
		notes []string
		first Upstreams // of a file that also names a stub: second choice
	)
	for _, file := range files {
		text, err := read(file)
		if err != nil {
			if explicit != "" || file == resolvConfFile {
				notes = append(notes, err.Error())
			}
			continue
		}
		servers, dropped, stub := usable(text, own, explicit != "")
		if len(servers) > 0 {
			found := Upstreams{Servers: servers, From: file}
			if !stub {
				return found
			}
			if first.From == "" {
				first = found
			}
		}
		switch {
		case len(dropped) > 0:
			notes = append(notes, fmt.Sprintf("%s names only %s", file, strings.Join(dropped, ", ")))
		case len(servers) == 0:
			notes = append(notes, file+" names no resolver")
		}
	}
	if first.From != "" {
		return first
	}
	next := "give a file that names real resolvers with --resolv-conf"
	if explicit != "" {
		next = "name a resolver in that file that is not part of the cluster"
	}
	return Upstreams{Why: fmt.Sprintf("names outside the cluster cannot be resolved: %s; %s", strings.Join(notes, "; "), next)}
}

// usable returns the addresses of text that may be asked and, in words, the
// others; stub tells that systemd-resolved's was among them.
func usable(text []byte, own []netip.Prefix, takeLoopback bool) (servers, dropped []string, stub bool) {
	config, err := dns.ClientConfigFromReader(bytes.NewReader(text))
	if err != nil {
		return nil, nil, false
	}
	for _, s := range config.Servers {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			dropped = append(dropped, fmt.Sprintf("%q (not an address)", s))
			continue
		}
		addr = addr.Unmap()
		within := func(p netip.Prefix) bool { return p.Contains(addr.WithZone("")) }
		switch {
		case slices.ContainsFunc(own, within):
			dropped = append(dropped, s+" (this cluster)")
		case addr.IsUnspecified() || addr.IsMulticast():
			dropped = append(dropped, s+" (not a resolver's address)")
		case addr.IsLoopback() && !takeLoopback && addr != dockerResolver():
			stub = stub || isResolvedStub(addr)
			dropped = append(dropped, s+" (loopback)")
		case !slices.Contains(servers, addr.String()) && len(servers) < maxUpstreams:
			servers = append(servers, addr.String())
		}
	}
	return servers, dropped, stub
}

// maxResolvConf bounds what is read of a file that somebody pointed us to.
const maxResolvConf = 64 << 10

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxResolvConf))
}
