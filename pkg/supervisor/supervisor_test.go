package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/kombi-k8s/kombi/pkg/pki"
)

// cluster is a server that machines join, and whom its API takes callers for.
type cluster struct {
	t      *testing.T
	certs  *pki.Cluster
	server *httptest.Server
	client *fake.Clientset
	token  Token
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	certs, err := pki.Open(pki.Options{
		Dir: filepath.Join(dir, "tls"), EncryptionConfig: filepath.Join(dir, "encryption.yaml"), NodeName: "server", ClusterDomain: "cluster.local",
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, certs: certs, client: fake.NewClientset()}
	serverCA, err1 := certs.ServerCA.PEM()
	clientCA, err2 := certs.ClientCA.PEM()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	handler := Handler(Options{
		Log: slog.New(slog.DiscardHandler), Secret: func() (string, error) { return "very-secret-word", nil },
		ServerCA: serverCA, ClientCA: clientCA, Signer: certs, Identities: Secrets{c.client},
		Cluster: Cluster{ClusterDomain: "cluster.local", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}},
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	c.server = httptest.NewUnstartedServer(handler)
	pair, err := tls.LoadX509KeyPair(certs.APIServer.CertFile, certs.APIServer.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	c.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	c.server.StartTLS()
	t.Cleanup(c.server.Close)
	text, err := FormatToken(serverCA, "very-secret-word")
	if err != nil {
		t.Fatal(err)
	}
	if c.token, err = ParseToken(text); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) machine(name string) Machine {
	return Machine{Server: c.server.URL, Token: c.token, Dir: filepath.Join(c.t.TempDir(), "node"), NodeName: name,
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}, Version: "test"}
}

func (c *cluster) addNode(name string) {
	c.t.Helper()
	if _, err := c.client.CoreV1().Nodes().Create(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func TestJoin(t *testing.T) {
	c := newCluster(t)
	m := c.machine("worker")
	got, err := Join(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	if got.Cluster.ClusterDomain != "cluster.local" || len(got.Cluster.ClusterCIDRs) != 1 {
		t.Errorf("the cluster is %+v", got.Cluster)
	}
	for identity, want := range map[string]string{KubeletClient: "system:node:worker", Network: "system:kombi:network", DNS: "system:kombi:dns"} {
		client, err := rest.HTTPClientFor(got.Client(identity))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Get(c.server.URL + "/whoami")
		if err != nil {
			t.Fatal(err)
		}
		name, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if string(name) != want {
			t.Errorf("the API takes %s for %s", identity, name)
		}
	}
	serving, err := tls.LoadX509KeyPair(got.File(KubeletServing), got.File(KubeletServing))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"worker", "192.0.2.7", "2001:db8::7", "127.0.0.1"} {
		if err := serving.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", e.Name(), info.Mode())
		}
	}

	c.addNode("worker")
	if _, err := Join(t.Context(), m); err != nil {
		t.Errorf("the same machine again: %v", err)
	}
	c.server.Close()
	if again, err := Join(t.Context(), m); err != nil || again.Cluster.ClusterDomain != "cluster.local" {
		t.Errorf("without its server: %v", err)
	}
	if _, err := Join(t.Context(), c.machine("another")); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("a new machine without the server: %v", err)
	}
}

func TestJoinIsRefused(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	c.addNode("taken")
	first := c.machine("mine")
	if _, err := Join(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	c.addNode("mine")
	for _, tc := range []struct {
		name string
		m    func(*Machine)
		want string
	}{
		{"a wrong token", func(m *Machine) { m.Token.Secret = "guess" }, "the token is wrong"},
		{"the token of another cluster", func(m *Machine) { m.Token = other.token }, "the token is of another cluster"},
		{"a name that a machine has", func(m *Machine) { m.NodeName = "mine" }, "kubectl delete node mine"},
		{"a name that a node has which did not join", func(m *Machine) { m.NodeName = "taken" }, "kubectl delete node taken"},
		{"a bad name", func(m *Machine) { m.NodeName = "Bad_Name" }, "set node-name"},
		{"not a URL", func(m *Machine) { m.Server = "://x" }, "write https://"},
		{"nobody there", func(m *Machine) { m.Server = "https://127.0.0.1:1" }, "cannot be reached"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := c.machine("fresh")
			tc.m(&m)
			_, err := Join(t.Context(), m)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if _, err := os.Stat(filepath.Join(m.Dir, clusterFile)); err == nil {
				t.Error("a membership was kept")
			}
		})
	}
	// A reinstalled machine comes back when its node was deleted.
	if err := c.client.CoreV1().Nodes().Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := c.machine("mine")
	if _, err := Join(t.Context(), again); err != nil {
		t.Errorf("after its node was deleted: %v", err)
	}
}

func TestTokens(t *testing.T) {
	for _, bad := range []string{"", "very-secret-word", "K10", "K10zz::server:x", "K10" + strings.Repeat("ab", 32), "K10" + strings.Repeat("ab", 32) + "::server:", "K10abcd::server:x"} {
		if _, err := ParseToken(bad); err == nil || !strings.Contains(err.Error(), "kombi token") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// What comes by the network may be anything.
func FuzzRequests(f *testing.F) {
	f.Add("POST", "/kombi/v1/join", []byte(`{"nodeName":"a","requests":{"kubelet":"AAAA"}}`))
	f.Add("GET", "/kombi/v1/ca", []byte(nil))
	f.Add("PUT", "/kombi/v1/../x", []byte("{"))
	dir := f.TempDir()
	certs, err := pki.Open(pki.Options{Dir: dir, EncryptionConfig: filepath.Join(dir, "e"), NodeName: "s", ClusterDomain: "c", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	handler := Handler(Options{
		Log: slog.New(slog.DiscardHandler), Secret: func() (string, error) { return "s", nil }, Signer: certs, Identities: Secrets{fake.NewClientset()},
	}, http.NotFoundHandler())
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		r, err := http.NewRequest(method, "https://x"+path, bytes.NewReader(body))
		if err != nil {
			return
		}
		r.Header.Set("Authorization", "Bearer s")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code == http.StatusOK && strings.Contains(w.Body.String(), "BEGIN CERTIFICATE") && !bytes.Contains(body, []byte("kubelet")) {
			t.Errorf("a certificate for %q", body)
		}
	})
}
