package metrics

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
)

const within = 20 * time.Second

// kubelet serves /metrics/resource over TLS. Every request finds the clock ten
// seconds further: the node has used five and the container two seconds of CPU.
type kubelet struct {
	*httptest.Server
	requests  atomic.Int64
	anonymous atomic.Int64 // requests without a client certificate
	broken    atomic.Bool
}

func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	k := &kubelet{}
	epoch := time.Now().Add(-time.Hour)
	k.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 {
			k.anonymous.Add(1)
		}
		if k.broken.Load() {
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		}
		if r.URL.Path != "/metrics/resource" {
			http.NotFound(w, r)
			return
		}
		n := k.requests.Add(1)
		at := epoch.Add(time.Duration(n) * 10 * time.Second).UnixMilli()
		fmt.Fprintf(w, `# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total %[2]d %[1]d
node_memory_working_set_bytes 1.048576e+09 %[1]d
container_start_time_seconds{container="web",namespace="shop",pod="web-1"} %[4]d
container_cpu_usage_seconds_total{container="web",namespace="shop",pod="web-1"} %[3]d %[1]d
container_memory_working_set_bytes{container="web",namespace="shop",pod="web-1"} 6.7108864e+07 %[1]d
`, at, 5*n, 2*n, epoch.Add(-time.Hour).Unix())
	}))
	k.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	k.StartTLS()
	t.Cleanup(k.Close)
	return k
}

func (k *kubelet) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.Certificate().Raw})
}

func (k *kubelet) node(name string) *corev1.Node {
	host, port, _ := net.SplitHostPort(k.Listener.Addr().String())
	number, _ := strconv.Atoi(port)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"big": "thing"}},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "does-not-resolve"}, {Type: corev1.NodeInternalIP, Address: host}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(number)}},
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Images:          []corev1.ContainerImage{{Names: []string{"a"}, SizeBytes: 1}},
		},
	}
}

func podMeta(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"big": "thing"}},
	}
}

// selfSigned makes a client certificate.
func selfSigned(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:kombi:metrics"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// newMetrics returns a component over fake clients that trusts ca.
func newMetrics(t *testing.T, ca []byte, nodes []runtime.Object, pods ...runtime.Object) (*Metrics, *syncBuffer) {
	t.Helper()
	cert, key := selfSigned(t)
	log := &syncBuffer{}
	m, err := New(Options{
		Log:  slog.New(slog.NewTextHandler(log, nil)),
		Kube: &rest.Config{Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertData: cert, KeyData: key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	m.caches = newCaches(fake.NewClientset(nodes...), metadatafake.NewSimpleMetadataClient(scheme, pods...))
	return m, log
}

// follow fills the caches and keeps them current for the rest of the test.
func follow(t *testing.T, m *Metrics) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	wait := m.caches.follow(ctx)
	t.Cleanup(func() { cancel(); wait() })
	limited, done := context.WithTimeout(ctx, within)
	defer done()
	if err := m.caches.waitForSync(limited); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, url string, header ...string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatalf("GET %s: %d %s", url, resp.StatusCode, body)
	}
	return resp.StatusCode, out
}

// at walks into decoded JSON: strings are keys, numbers are indexes.
func at(v any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

func TestServesWhatKubeletsSay(t *testing.T) {
	k := newKubelet(t)
	m, _ := newMetrics(t, k.ca(), []runtime.Object{k.node("edge-1")}, podMeta("web-1"), podMeta("web-2"))
	api := newAPIServer(t, m)
	base := api.URL + "/apis/metrics.k8s.io/v1beta1"

	// Before anything runs: an answer, and no wait.
	if code, list := get(t, base+"/nodes"); code != 200 || len(at(list, "items").([]any)) != 0 {
		t.Errorf("nodes before the start: %d %v", code, list)
	}
	if code, status := get(t, base+"/namespaces/shop/pods/web-1"); code != 404 {
		t.Errorf("pod before the start: %d %v", code, status)
	}

	follow(t, m)
	m.scrapeAll(t.Context())
	if code, status := get(t, base+"/nodes/edge-1"); code != 404 {
		t.Errorf("node after one point: %d %v", code, status)
	}
	m.scrapeAll(t.Context())

	code, node := get(t, base+"/nodes/edge-1")
	if code != 200 || at(node, "usage", "cpu") != "500m" && at(node, "usage", "cpu") != "500000000n" || at(node, "usage", "memory") != "1000Mi" && at(node, "usage", "memory") != "1024000Ki" {
		t.Errorf("node: %d %v", code, node)
	}
	if at(node, "window") != "10s" || at(node, "metadata", "labels", "zone") != "a" {
		t.Errorf("node: %v", node)
	}
	code, pods := get(t, base+"/namespaces/shop/pods?labelSelector=app%3Dweb")
	if code != 200 || len(at(pods, "items").([]any)) != 1 || at(pods, "items", 0, "containers", 0, "usage", "cpu") != "200m" && at(pods, "items", 0, "containers", 0, "usage", "cpu") != "200000000n" {
		t.Errorf("pods: %d %v", code, pods)
	}
	if _, none := get(t, base+"/namespaces/shop/pods?labelSelector=app%3Dother"); len(at(none, "items").([]any)) != 0 {
		t.Errorf("pods of another label: %v", none)
	}
	if _, all := get(t, base+"/pods"); len(at(all, "items").([]any)) != 1 {
		t.Errorf("pods of all namespaces: %v", all)
	}
	if n := k.anonymous.Load(); n > 0 {
		t.Errorf("%d requests came without the client certificate", n)
	}
	kept, _, _ := m.caches.nodeStore.GetByKey("edge-1")
	if n := kept.(*corev1.Node); len(n.Status.Images) > 0 || len(n.Annotations) > 0 {
		t.Errorf("the cache keeps more than it needs: %v", n)
	}
}

func TestTableForKubectlGet(t *testing.T) {
	k := newKubelet(t)
	m, _ := newMetrics(t, k.ca(), []runtime.Object{k.node("edge-1")})
	api := newAPIServer(t, m)
	follow(t, m)
	m.scrapeAll(t.Context())
	m.scrapeAll(t.Context())
	code, table := get(t, api.URL+"/apis/metrics.k8s.io/v1beta1/nodes", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if code != 200 || at(table, "kind") != "Table" || at(table, "rows", 0, "cells", 0) != "edge-1" {
		t.Errorf("%d %v", code, table)
	}
}

func TestFailingKubelet(t *testing.T) {
	k := newKubelet(t)
	m, log := newMetrics(t, k.ca(), []runtime.Object{k.node("edge-1")})
	follow(t, m)
	k.broken.Store(true)
	for range 3 {
		m.scrapeAll(t.Context())
	}
	if n := strings.Count(log.String(), "could not be scraped"); n != 1 {
		t.Errorf("%d warnings about one broken kubelet:\n%s", n, log)
	}
	k.broken.Store(false)
	m.scrapeAll(t.Context())
	m.scrapeAll(t.Context())
	if n := strings.Count(log.String(), "answers again"); n != 1 {
		t.Errorf("%d notes about the recovery:\n%s", n, log)
	}
}

func TestRefusesUnknownKubelets(t *testing.T) {
	k := newKubelet(t)
	other, _ := selfSigned(t)
	m, log := newMetrics(t, other, []runtime.Object{k.node("edge-1")})
	follow(t, m)
	m.scrapeAll(t.Context())
	if !strings.Contains(log.String(), "certificate signed by unknown authority") {
		t.Errorf("log:\n%s", log)
	}
	if k.requests.Load() != 0 {
		t.Error("a kubelet with a foreign certificate was asked")
	}
}

func TestRun(t *testing.T) {
	k := newKubelet(t)
	m, _ := newMetrics(t, k.ca(), []runtime.Object{k.node("edge-1")}, podMeta("web-1"))
	for run := range 2 { // the second as after a failure
		before := k.requests.Load()
		ctx, cancel := context.WithCancel(t.Context())
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- m.Run(ctx, func() { close(ready) }) }()
		select {
		case <-ready:
		case <-time.After(within):
			t.Fatal("not ready")
		}
		deadline := time.Now().Add(within)
		for k.requests.Load() == before && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if k.requests.Load() == before {
			t.Errorf("run %d: the kubelet is not asked", run)
		}
		if err := m.Healthy(); err != nil {
			t.Errorf("run %d: unhealthy: %v", run, err)
		}
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run %d: ended with %v", run, err)
			}
		case <-time.After(within):
			t.Fatalf("run %d does not end", run)
		}
	}
}

func TestUnhealthyWhenTheLoopHangs(t *testing.T) {
	k := newKubelet(t)
	m, _ := newMetrics(t, k.ca(), nil)
	m.running.Store(true)
	m.lastRound.Store(time.Now().Add(-5 * DefaultResolution).UnixNano())
	if err := m.Healthy(); err == nil || !strings.Contains(err.Error(), "1m15s") {
		t.Errorf("got %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	good := Options{Log: slog.Default(), Kube: &rest.Config{Host: "https://127.0.0.1:6443"}}
	for name, change := range map[string]func(*Options){
		"no log":             func(o *Options) { o.Log = nil },
		"no API":             func(o *Options) { o.Kube = nil },
		"too fine":           func(o *Options) { o.Resolution = time.Second },
		"unverified kubelet": func(o *Options) { o.Kubelet = &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}} },
	} {
		t.Run(name, func(t *testing.T) {
			opts := good
			change(&opts)
			if _, err := New(opts); err == nil {
				t.Error("accepted")
			}
		})
	}
}
