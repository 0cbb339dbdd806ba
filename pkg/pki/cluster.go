package pki

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Options say what a server's certificates are made for.
type Options struct {
	// Dir is the folder of certificates and keys; made with mode 0700.
	Dir string
	// EncryptionConfig is the file that tells the API server how to encrypt
	// secrets at rest; its folder exists.
	EncryptionConfig string
	// NodeName is the name of the node on this machine.
	NodeName string
	// Names are further DNS names of the API server.
	Names []string
	// Addresses are the addresses of the API server and of the node, the
	// service address of the API server among them.
	Addresses []netip.Addr
	// ClusterDomain is the DNS domain of services, such as cluster.local.
	ClusterDomain string
	// Log receives one line for each renewal.
	Log *slog.Logger
	// Now is the clock; nil is the machine's.
	Now func() time.Time
}

// Cluster holds the authorities and leaves of a cluster's server.
type Cluster struct {
	opts Options

	// ServerCA signs what servers show, ClientCA what clients show, and
	// RequestHeaderCA the API server's own identity towards aggregated APIs.
	ServerCA, ClientCA, RequestHeaderCA *Authority
	// APIServer is the serving certificate of the API.
	APIServer *Leaf
	// Kubelet is the serving certificate of this machine's kubelet.
	Kubelet *Leaf
	// FrontProxy is the API server's identity towards aggregated APIs.
	FrontProxy *Leaf
	// ServiceAccountKey is the file with the key that signs tokens of service
	// accounts.
	ServiceAccountKey string
	// EncryptionConfig is the file of [Options.EncryptionConfig].
	EncryptionConfig string

	mu     sync.Mutex
	leaves []*Leaf
}

// Open reads the certificates in the folder, makes those that are missing and
// renews those that are near their end.
func Open(opts Options) (*Cluster, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the folder for certificates: %w", err)
	}
	c := &Cluster{
		opts:              opts,
		ServiceAccountKey: filepath.Join(opts.Dir, "service-account.key"),
		EncryptionConfig:  opts.EncryptionConfig,
	}
	for _, ca := range []struct {
		to   **Authority
		name string
	}{{&c.ServerCA, "server-ca"}, {&c.ClientCA, "client-ca"}, {&c.RequestHeaderCA, "request-header-ca"}} {
		a, err := loadAuthority(c.file(ca.name+".crt"), c.file(ca.name+".key"), "kombi-"+ca.name, opts.Now())
		if err != nil {
			return nil, err
		}
		*ca.to = a
	}
	if err := c.ensureServiceAccountKey(); err != nil {
		return nil, err
	}
	if err := c.ensureEncryptionConfig(); err != nil {
		return nil, err
	}
	serverAuth := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, a := range opts.Addresses {
		ips = append(ips, a.AsSlice())
	}
	names := append([]string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + opts.ClusterDomain,
		"localhost", opts.NodeName,
	}, opts.Names...)
	var err error
	if c.APIServer, err = c.leaf(c.ServerCA, "apiserver", pkix.Name{CommonName: "kube-apiserver"}, serverAuth, names, ips); err != nil {
		return nil, err
	}
	if c.Kubelet, err = c.leaf(c.ServerCA, "kubelet", pkix.Name{CommonName: "system:node:" + opts.NodeName, Organization: []string{"system:nodes"}}, serverAuth, []string{opts.NodeName, "localhost"}, ips); err != nil {
		return nil, err
	}
	if c.FrontProxy, err = c.leaf(c.RequestHeaderCA, "front-proxy", pkix.Name{CommonName: "system:auth-proxy"}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, nil, nil); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Cluster) file(name string) string { return filepath.Join(c.opts.Dir, name) }

func (c *Cluster) leaf(a *Authority, name string, subject pkix.Name, usages []x509.ExtKeyUsage, names []string, ips []net.IP) (*Leaf, error) {
	return c.addLeaf(&Leaf{
		CertFile: c.file(name + ".crt"), KeyFile: c.file(name + ".key"),
		Subject: subject, Usages: usages, DNSNames: names, IPs: ips, authority: a,
	})
}

func (c *Cluster) addLeaf(l *Leaf) (*Leaf, error) {
	if _, err := l.ensure(c.opts.Now()); err != nil {
		return nil, fmt.Errorf("cannot issue the certificate of %s: %w", l.Subject.CommonName, err)
	}
	c.mu.Lock()
	c.leaves = append(c.leaves, l)
	c.mu.Unlock()
	return l, nil
}

// Client returns the leaf of an API client: user and groups as RBAC sees them.
// Its file, named after the user, holds key and certificate together so that
// both change in one step.
func (c *Cluster) Client(user string, groups ...string) (*Leaf, error) {
	file := c.file("client-" + strings.ReplaceAll(strings.TrimPrefix(user, "system:"), ":", "-") + ".pem")
	if l := c.issued(file); l != nil {
		return l, nil
	}
	return c.addLeaf(&Leaf{
		CertFile: file, KeyFile: file,
		Subject: pkix.Name{CommonName: user, Organization: groups},
		Usages:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, authority: c.ClientCA,
	})
}

// issued returns the leaf kept in a file, if there is one already.
func (c *Cluster) issued(file string) *Leaf {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.leaves, func(l *Leaf) bool { return l.CertFile == file }); i >= 0 {
		return c.leaves[i]
	}
	return nil
}

// RESTConfig returns the connection settings with which the holder of the leaf
// reaches the API server at host. client-go follows the files when they change.
func (c *Cluster) RESTConfig(host string, l *Leaf) *rest.Config {
	return &rest.Config{
		Host: host,
		TLSClientConfig: rest.TLSClientConfig{
			CertFile: l.CertFile,
			KeyFile:  l.KeyFile,
			CAFile:   c.ServerCA.CertFile,
		},
	}
}

// Name implements component.Component.
func (c *Cluster) Name() string { return "certificates" }

// Needs implements component.Component.
func (c *Cluster) Needs() []string { return nil }

// Run renews leaves while Kombi runs. It looks every hour by the machine's
// clock, which costs no write, so that a clock that jumped is noticed soon.
func (c *Cluster) Run(ctx context.Context, ready func()) error {
	ready()
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.Renew()
		}
	}
}

// Renew renews every leaf that is near its end.
func (c *Cluster) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.leaves {
		changed, err := l.ensure(c.opts.Now())
		switch {
		case err != nil:
			c.opts.Log.Error("certificate cannot be renewed", "holder", l.Subject.CommonName, "error", err)
		case changed:
			c.opts.Log.Info("certificate renewed", "holder", l.Subject.CommonName)
		}
	}
}

func (c *Cluster) ensureServiceAccountKey() error {
	if data, err := os.ReadFile(c.ServiceAccountKey); err == nil {
		if _, err := parseKey(data); err != nil {
			return fmt.Errorf("%s: %w; put the file back from a backup", c.ServiceAccountKey, err)
		}
		return nil
	} else if !os.IsNotExist(err) {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return writeKey(c.ServiceAccountKey, key)
}

// ensureEncryptionConfig makes the key that encrypts secrets at rest from the
// first start (XSalsa20-Poly1305, as the API server's "secretbox" provider).
func (c *Cluster) ensureEncryptionConfig() error {
	if _, err := os.Stat(c.EncryptionConfig); err == nil || !os.IsNotExist(err) {
		return err
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	return WriteFile(c.EncryptionConfig, fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox:
      keys:
      - name: key1
        secret: %s
  - identity: {}
`, base64.StdEncoding.EncodeToString(key)))
}
