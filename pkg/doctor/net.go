package doctor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/host"
)

// checkPorts binds each port for a moment, which is the only sure test, and then looks who holds it.
func checkPorts(ctx context.Context, o *Options) []Finding {
	var out []Finding
	for _, p := range o.Ports {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(p.Address, strconv.Itoa(p.Number)))
		if err == nil {
			_ = l.Close()
			continue
		}
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			who := "another process"
			if found, _ := host.Listeners(o.Proc, p.Number); len(found) > 0 {
				who = found[0].String()
			}
			out = append(out, fail("stop it, or choose another port with --"+p.Key, "port %d is in use by %s", p.Number, who)...)
		case errors.Is(err, unix.EADDRNOTAVAIL):
			out = append(out, fail("give an address of this machine", "the address %s does not belong to this machine", p.Address)...)
		default:
			out = append(out, fail("choose another port with --"+p.Key, "port %d cannot be used: %v", p.Number, errors.Unwrap(err))...)
		}
	}
	return out
}

// checkResolvConf judges the name servers that DNS in the cluster would forward to.
func checkResolvConf(_ context.Context, o *Options) []Finding {
	if o.ResolvConf == "" {
		return nil
	}
	const next = "name a file with real name servers with --resolv-conf"
	data, err := os.ReadFile(o.ResolvConf)
	if err != nil {
		return warn(next, "%s cannot be read, so names outside the cluster cannot be looked up", o.ResolvConf)
	}
	servers, local := nameServers(string(data))
	switch {
	case servers == 0:
		return warn(next, "%s names no name server, so names outside the cluster cannot be looked up", o.ResolvConf)
	case servers == local && !fileExists("/run/systemd/resolve/resolv.conf"):
		return warn(next, "%s names only this machine itself, so names outside the cluster can be looked up only while its own resolver runs", o.ResolvConf)
	}
	return nil
}

// nameServers counts the name servers, and those of them on the loopback interface.
func nameServers(resolvConf string) (all, local int) {
	for line := range strings.Lines(resolvConf) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		ip, err := netip.ParseAddr(f[1])
		if err != nil {
			continue
		}
		all++
		if ip.IsLoopback() {
			local++
		}
	}
	return all, local
}

// checkFirewall knows the two firewalls that drop what pods send unless they are told otherwise.
func checkFirewall(_ context.Context, o *Options) []Finding {
	if running(o.Proc, "/run/firewalld.pid") || running(o.Proc, "/run/firewalld/firewalld.pid") {
		return warn("trust the pods: firewall-cmd --permanent --zone=trusted"+o.forPods(" --add-source=")+" && firewall-cmd --reload",
			"firewalld runs on this machine and may drop the traffic of pods")
	}
	if data, err := os.ReadFile("/etc/ufw/ufw.conf"); err == nil && ufwEnabled(string(data)) {
		return warn("allow the pods:"+strings.TrimPrefix(o.forPods(" && ufw allow from "), " &&"), "ufw is enabled on this machine and may drop the traffic of pods")
	}
	return nil
}

// forPods repeats a part of a command for each network of the pods.
func (o *Options) forPods(part string) string {
	if len(o.PodNetworks) == 0 {
		return part + "<cluster-cidr>"
	}
	var out strings.Builder
	for _, n := range o.PodNetworks {
		out.WriteString(part + n.String())
	}
	return out.String()
}

func ufwEnabled(conf string) bool {
	for line := range strings.Lines(conf) {
		if key, val, ok := strings.Cut(strings.TrimSpace(line), "="); ok && key == "ENABLED" {
			return strings.Trim(val, `"'`) == "yes"
		}
	}
	return false
}

func running(proc, pidFile string) bool {
	data, err := os.ReadFile(pidFile)
	return err == nil && fileExists(proc+"/"+strings.TrimSpace(string(data))+"/stat")
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
