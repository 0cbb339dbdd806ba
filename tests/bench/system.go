package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// system is one way to run a node with its control plane.
type system interface {
	name() string
	// start starts every process and returns without waiting for a node.
	start(ctx context.Context) error
	// processes are those that were started last.
	processes() []*process
	// stop ends them in good order, what others need last.
	stop(ctx context.Context) error
	// kubeconfig is the administrator's; it may not exist yet.
	kubeconfig() string
	// dns is the server that pods ask.
	dns() netip.AddrPort
	// joinNode puts this process where the node's own processes are, so that it
	// reaches service addresses as they do.
	joinNode() error
	// addImages makes the archives available to pods of the running system.
	addImages(ctx context.Context, archives []string) error
	// dir holds all of its data.
	dir() string
}

// poll is how often readiness is looked at.
const poll = 20 * time.Millisecond

// await calls check until it returns nil, and fails when a process ended.
func await(ctx context.Context, s system, what string, limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return nil
		}
		for _, p := range s.processes() {
			if failure := p.failure(); failure != nil {
				return failure
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not after %s: %w", what, limit, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// client waits for the kubeconfig and returns a client that does not limit itself.
func client(ctx context.Context, s system) (*kubernetes.Clientset, error) {
	var c *kubernetes.Clientset
	err := await(ctx, s, "kubeconfig of "+s.name(), time.Minute, func() error {
		config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
		if err != nil {
			return err
		}
		config.QPS, config.Burst, config.Timeout = 500, 1000, 10*time.Second
		c, err = kubernetes.NewForConfig(config)
		return err
	})
	return c, err
}

// awaitReady waits until the Node is Ready. After a restart its kubelet must
// have said something since then.
func awaitReady(ctx context.Context, s system, c kubernetes.Interface, restarted *time.Time) error {
	return await(ctx, s, s.name()+": node Ready", 2*time.Minute, func() error {
		node, err := c.CoreV1().Nodes().Get(ctx, harness.HostName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if why := notReady(node); why != "" {
			return errors.New(why)
		}
		if restarted == nil {
			return nil
		}
		// What the Node says may be of the time before a restart; the lease is new.
		lease, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, harness.HostName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(*restarted) {
			return errors.New("the kubelet has not renewed its lease")
		}
		return nil
	})
}

func notReady(node *corev1.Node) string {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return ""
		} else if condition.Type == corev1.NodeReady {
			return condition.Message
		}
	}
	return "the Node has no condition Ready yet"
}

// wipe makes the machine as fresh as it was.
func wipe(s system) error {
	if err := unmountBelow(s.dir()); err != nil {
		return err
	}
	leftovers := []string{s.dir()}
	pins, err := os.ReadDir("/sys/fs/bpf")
	if err != nil {
		return err
	}
	for _, pin := range pins {
		if pin.IsDir() { // the files are the kernel's
			leftovers = append(leftovers, filepath.Join("/sys/fs/bpf", pin.Name()))
		}
	}
	for _, path := range leftovers {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if err := errors.Join(wipeLinks(), flushRules()); err != nil {
		return err
	}
	return os.MkdirAll(s.dir(), 0o700)
}

func unmountBelow(dir string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if target := strings.Fields(lines[i])[4]; strings.HasPrefix(target, dir+"/") {
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount %s: %w", target, err)
			}
		}
	}
	return nil
}

// wipeLinks removes interfaces and addresses that nodes made.
func wipeLinks() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		switch link.Attrs().Name {
		case "eth0":
		case "lo":
			addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			for _, a := range addresses {
				if !a.IP.IsLoopback() {
					if err := netlink.AddrDel(link, &a); err != nil {
						return err
					}
				}
			}
		default:
			// The other end of a pair goes with the first.
			if err := netlink.LinkDel(link); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("remove interface %s: %w", link.Attrs().Name, err)
			}
		}
	}
	return nil
}
