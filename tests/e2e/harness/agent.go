package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// AgentIP is the address of the agent's machine: on another network than the server's,
// so that only the outside leads from one to the other.
const (
	AgentIP      = "10.201.0.2"
	agentGateway = "10.201.0.1"
	// AgentName is the name of its node.
	AgentName = "far"
)

// Agent is a second machine that is a node of the server's cluster. It has a network
// and a data directory of its own, and shares the rest with the first.
type Agent struct {
	// DataDir holds its state, Log is what it printed.
	DataDir, Log string

	netns netns.NsHandle
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process is gone
	err   error         // of the process, then
}

// NewAgent makes the machine.
func NewAgent(t testing.TB, archives []string) *Agent {
	t.Helper()
	base := filepath.Join(Dir(), AgentName)
	a := &Agent{DataDir: filepath.Join(base, "d"), Log: filepath.Join(base, "kombi.log")}
	images := filepath.Join(a.DataDir, "images")
	if err := os.MkdirAll(images, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, archive := range archives {
		data, err := os.ReadFile(archive)
		if err == nil {
			err = os.WriteFile(filepath.Join(images, filepath.Base(archive)), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := a.connect(); err != nil {
		t.Fatalf("the agent's network: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("agent:\n%s", tail(a.Log, 40))
		}
		a.Kill(t)
		_ = a.netns.Close()
		_ = netns.DeleteNamed(AgentName)
	})
	return a
}

// connect makes the network namespace and a wire to the outside, which forwards.
func (a *Agent) connect() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }()
	if a.netns, err = netns.NewNamed(AgentName); err != nil { // also enters it
		return err
	}
	defer func() { _ = netns.Set(here) }()
	out, err := netns.GetFromName(outsideNS)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "agent0", PeerNamespace: netlink.NsFd(int(out))}
	if err := netlink.LinkAdd(wire); err != nil {
		return fmt.Errorf("veth pair: %w", err)
	}
	if err := address(AgentIP); err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(agentGateway)}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	if err := netns.Set(out); err != nil {
		return err
	}
	end, err := netlink.LinkByName("agent0")
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(end, onWire(agentGateway)), netlink.LinkSetUp(end),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
}

// Start joins the server's cluster.
func (a *Agent) Start(t testing.TB, token string, args ...string) {
	t.Helper()
	if err := a.start(token, args...); err != nil {
		t.Fatalf("start the agent: %v", err)
	}
}

func (a *Agent) start(token string, args ...string) error {
	log, err := os.OpenFile(a.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args = append([]string{"agent", "--server", "https://" + MachineIP + ":6443", "--token", token,
		"--data-dir", a.DataDir, "--node-name", AgentName, "--cgroup-root", "/kombi-e2e-" + AgentName,
		"--kubelet-arg", "eviction-hard=memory.available<50Mi,nodefs.available<1%,imagefs.available<1%",
	}, args...)
	cmd := exec.Command(Binary(), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = Dir(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }()
	if err := netns.Set(a.netns); err != nil { // what is started inherits it
		return err
	}
	defer func() { _ = netns.Set(here) }()
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	a.cmd, a.ended = cmd, ended
	go func() {
		a.err = cmd.Wait()
		close(ended)
	}()
	return nil
}

// WaitEnd returns what the agent printed last, when it ends by itself.
func (a *Agent) WaitEnd(t testing.TB) string {
	t.Helper()
	select {
	case <-a.ended:
		if a.err == nil {
			t.Error("the agent ended with status 0")
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("the agent goes on:\n%s", tail(a.Log, 20))
	}
	return tail(a.Log, 3)
}

// Kill ends the agent without notice. Its pods go on.
func (a *Agent) Kill(t testing.TB) {
	t.Helper()
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Kill()
	<-a.ended
	a.cmd = nil
}

// Token is what machines need to join the server's cluster.
func (k *Kombi) Token(t testing.TB) string {
	t.Helper()
	out, err := exec.Command(Binary(), "token", "--data-dir", k.DataDir).Output()
	if err != nil {
		t.Fatalf("kombi token: %v", err)
	}
	return strings.TrimSpace(string(out))
}
