// Package deploy tests the manifests, the roles and the storage of Kombi against
// a real control plane: datastore, API server, controller manager and scheduler
// in this process, on the loopback interface. There is no kubelet; a Node object
// stands for the node. Neither root nor a network is needed.
package deploy

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kombi-k8s/kombi/pkg/component"
	"github.com/kombi-k8s/kombi/pkg/controlplane"
	"github.com/kombi-k8s/kombi/pkg/datastore"
	"github.com/kombi-k8s/kombi/pkg/kubeconfig"
	"github.com/kombi-k8s/kombi/pkg/logging"
	"github.com/kombi-k8s/kombi/pkg/pki"
)

// plane is the control plane that all tests share: an API server can be started
// only once in a process.
type plane struct {
	certs  *pki.Cluster
	host   string
	log    *slog.Logger
	admin  *rest.Config
	client *kubernetes.Clientset
}

var shared *plane

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: these tests start a control plane, and -short was given")
		return
	}
	code, err := withPlane(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the control plane for the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// withPlane runs the tests with a control plane around them.
func withPlane(run func() int) (int, error) {
	dir, err := os.MkdirTemp("", "kombi-deploy-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	log, err := openLog(filepath.Join(dir, "log"))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &plane{log: log}
	graph, err := p.graph(dir)
	if err != nil {
		cancel()
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- graph.Run(ctx) }()
	select {
	case <-graph.Ready():
	case err := <-done:
		cancel()
		return 0, err
	case <-time.After(90 * time.Second):
		cancel()
		return 0, fmt.Errorf("not ready after 90 s")
	}
	shared = p
	code := run()
	if code != 0 {
		printTail(filepath.Join(dir, "log"))
	}
	cancel()
	select {
	case err = <-done:
	case <-time.After(30 * time.Second):
		err = fmt.Errorf("does not end")
	}
	return code, err
}

func openLog(path string) (*slog.Logger, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelInfo}))
	logging.Adopt(log)
	return log, nil
}

func printTail(path string) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	_, _ = file.Seek(-20000, io.SeekEnd)
	fmt.Println("--- the end of the log:")
	_, _ = io.Copy(os.Stdout, file)
}

// graph wires the control plane as the server does.
func (p *plane) graph(dir string) (*component.Graph, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	services := netip.MustParsePrefix("10.43.0.0/16")
	p.certs, err = pki.Open(pki.Options{
		Dir: filepath.Join(dir, "tls"), EncryptionConfig: filepath.Join(dir, "encryption.yaml"), NodeName: nodeName,
		Addresses: []netip.Addr{loopback, services.Addr().Next()}, ClusterDomain: "cluster.local", Log: p.log,
	})
	if err != nil {
		return nil, err
	}
	p.host = "https://" + netip.AddrPortFrom(loopback, port).String()
	if p.admin, err = p.identity("system:kombi:admin", "system:masters"); err != nil {
		return nil, err
	}
	if p.client, err = kubernetes.NewForConfig(p.admin); err != nil {
		return nil, err
	}
	files := make(map[string]string)
	for _, user := range []string{"system:kube-controller-manager", "system:kube-scheduler"} {
		config, err := p.identity(user)
		if err != nil {
			return nil, err
		}
		files[user] = filepath.Join(dir, filepath.Base(config.CertFile)+".kubeconfig")
		if err := kubeconfig.WriteReferring(files[user], config); err != nil {
			return nil, err
		}
	}
	anonymous := filepath.Join(dir, "authentication.yaml")
	if err := os.WriteFile(anonymous, []byte(controlplane.AnonymousHealthOnly), 0o600); err != nil {
		return nil, err
	}
	kubelets, err := p.certs.Client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return nil, err
	}
	store := datastore.NewSQLite(datastore.Options{
		Log: p.log, File: filepath.Join(dir, "state.db"), SnapshotDir: filepath.Join(dir, "snapshots"), Socket: filepath.Join(dir, "kine.sock"),
	})
	return component.NewGraph(p.log, p.certs, store,
		controlplane.NewAPIServer(controlplane.APIServerOptions{
			Log: p.log, Certificates: p.certs, KubeletClient: kubelets, Loopback: p.admin, Datastore: store.Endpoint(), NewDatastoreClient: store.NewClient,
			// An endpoint cannot be a loopback address; nobody uses this one.
			BindAddress: loopback, Port: int(port), AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), ServiceCIDRs: []netip.Prefix{services},
			NodePortFirst: 30000, NodePortLast: 32767, ClusterDomain: "cluster.local", AuthenticationConfig: anonymous,
		}),
		controlplane.NewControllerManager(controlplane.ControllerManagerOptions{
			Certificates: p.certs, Kubeconfig: files["system:kube-controller-manager"],
			ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, ServiceCIDRs: []netip.Prefix{services},
		}),
		controlplane.NewScheduler(controlplane.SchedulerOptions{Kubeconfig: files["system:kube-scheduler"]}),
	)
}

// identity returns the configuration with which a user reaches the API.
func (p *plane) identity(user string, groups ...string) (*rest.Config, error) {
	leaf, err := p.certs.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	return p.certs.RESTConfig(p.host, leaf), nil
}

func freePort() (uint16, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return netip.MustParseAddrPort(listener.Addr().String()).Port(), nil
}
