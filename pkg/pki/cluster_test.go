package pki

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)

func options(t *testing.T, dir string, now time.Time) Options {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return Options{
		Dir: dir, EncryptionConfig: filepath.Join(dir, "encryption.yaml"), NodeName: "n1", ClusterDomain: "cluster.local",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now },
	}
}

func open(t *testing.T, dir string, now time.Time) *Cluster {
	t.Helper()
	c, err := Open(options(t, dir, now))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// handshake connects a client of the cluster to the API server's certificate,
// both with the clock at now.
func handshake(t *testing.T, c *Cluster, client *Leaf, now time.Time) error {
	t.Helper()
	pool := func(a *Authority) *x509.CertPool {
		p := x509.NewCertPool()
		p.AddCert(a.Certificate())
		return p
	}
	load := func(l *Leaf) tls.Certificate {
		pair, err := tls.LoadX509KeyPair(l.CertFile, l.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	clock := func() time.Time { return now }
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	server := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{load(c.APIServer)}, ClientCAs: pool(c.ClientCA), ClientAuth: tls.RequireAndVerifyClientCert, Time: clock})
	go func() { _ = server.Handshake() }()
	conn := tls.Client(near, &tls.Config{Certificates: []tls.Certificate{load(client)}, RootCAs: pool(c.ServerCA), ServerName: "kubernetes.default.svc", Time: clock})
	return conn.Handshake()
}

func TestCertificatesKeepWorkingWhenTheClockMovesByAYear(t *testing.T) {
	for name, moved := range map[string]time.Duration{
		"unchanged":        0,
		"one year forward": 365 * 24 * time.Hour,
		"one year back":    -365 * 24 * time.Hour,
		"ten years on":     10 * 365 * 24 * time.Hour,
	} {
		t.Run(name+" while stopped", func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "tls")
			open(t, dir, start)
			later := start.Add(moved)
			c := open(t, dir, later)
			client, err := c.Client("system:kombi:admin", "system:masters")
			if err != nil {
				t.Fatal(err)
			}
			if err := handshake(t, c, client, later); err != nil {
				t.Fatal(err)
			}
		})
		t.Run(name+" while running", func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "tls")
			now := start
			opts := options(t, dir, now)
			opts.Now = func() time.Time { return now }
			c, err := Open(opts)
			if err != nil {
				t.Fatal(err)
			}
			client, err := c.Client("system:kombi:admin", "system:masters")
			if err != nil {
				t.Fatal(err)
			}
			now = start.Add(moved)
			c.Renew()
			if err := handshake(t, c, client, now); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestGoodCertificatesAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	first := open(t, dir, start)
	before, err := os.ReadFile(first.APIServer.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	open(t, dir, start.Add(200*24*time.Hour))
	after, err := os.ReadFile(first.APIServer.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Fatal("a certificate with more than a third of its life left was replaced")
	}
}

func TestANewAddressGivesANewCertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	open(t, dir, start)
	opts := options(t, dir, start)
	opts.Addresses = append(opts.Addresses, netip.MustParseAddr("198.51.100.9"))
	c, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(c.APIServer.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := parseCertificate(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := cert.VerifyHostname("198.51.100.9"); err != nil {
		t.Fatal(err)
	}
}

func TestEveryFileIsOnlyForRoot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	c := open(t, dir, start)
	if _, err := c.Client("system:node:n1", "system:nodes"); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %o", path, info.Mode().Perm())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDamageIsToldWithTheFileAndTheNextAction(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   string
	}{
		"key of an authority lost":         {remove("server-ca.key"), "put the key back"},
		"certificate of an authority lost": {remove("server-ca.crt"), "put the certificate back"},
		"authority overwritten":            {overwrite("client-ca.crt"), "client-ca.crt: no certificate in it; put the file back"},
		"authority's key overwritten":      {overwrite("client-ca.key"), "client-ca.key: no key in it; put the file back"},
		"token key overwritten":            {overwrite("service-account.key"), "service-account.key: no key in it; put the file back"},
		"mixed up":                         {mixUp, "do not belong together"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "tls")
			open(t, dir, start)
			tc.damage(t, dir)
			_, err := Open(options(t, dir, start))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want a sentence with %q", err, tc.want)
			}
		})
	}
}

func TestADamagedLeafIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	open(t, dir, start)
	overwrite("apiserver.crt")(t, dir)
	remove("kubelet.key")(t, dir)
	c := open(t, dir, start)
	client, err := c.Client("someone")
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(t, c, client, start); err != nil {
		t.Fatal(err)
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func overwrite(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("garbage\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func mixUp(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "client-ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "server-ca.key"), data, 0o600); err != nil {
		t.Fatal(err)
	}
}
