package dns

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func custom(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: customNamespace, Name: customName}, Data: data}
}

func overExample(addr string) string {
	return "template IN A over.example {\n  answer \"{{ .Name }} 60 IN A " + addr + "\"\n}"
}

func TestCustomConfiguration(t *testing.T) {
	api := newFakeAPI(t, append(shop(), custom(map[string]string{
		"a.override": overExample("192.0.2.1"),
	}))...)
	r := start(t, api, nil).awaitReady()
	expect := func(step, name string, want ...string) {
		t.Helper()
		eventually(t, func() string {
			if rcode, a := r.ask("udp", name, dns.TypeA); !slices.Equal(a, want) {
				return fmt.Sprintf("%s: %s is %s %q, want %q; log:\n%s", step, name, rcode, a, want, r.log)
			}
			return ""
		})
	}
	expect("present at start", "over.example", "A 192.0.2.1")

	api.put(custom(map[string]string{
		"a.override": overExample("192.0.2.2"),
		"b.server":   "corp.example {\n  hosts {\n    192.0.2.3 wiki.corp.example\n  }\n}",
	}))
	expect("changed", "over.example", "A 192.0.2.2")
	expect("server block", "wiki.corp.example", "A 192.0.2.3")

	// One bad key: the good one beside it comes into use, the bad one stays as it was.
	api.put(custom(map[string]string{
		"a.override": "template IN A over.example {\n answer\n}",
		"b.server":   "corp.example {\n  hosts {\n    192.0.2.4 wiki.corp.example\n  }\n}",
	}))
	expect("good beside bad", "wiki.corp.example", "A 192.0.2.4")
	expect("bad keeps the last good", "over.example", "A 192.0.2.2")
	eventually(t, func() string {
		for _, e := range api.seenEvents() {
			if e.InvolvedObject.Name == customName && e.Reason == "DNSConfigurationRefused" && strings.Contains(e.Message, "a.override") && strings.Contains(e.Message, "last good") {
				return ""
			}
		}
		return fmt.Sprintf("no Event says why; there are %v", api.seenEvents())
	})

	// Good each, but not together.
	api.put(custom(map[string]string{
		"b.server": "corp.example {\n whoami\n}", "c.server": "corp.example {\n whoami\n}",
	}))
	eventually(t, func() string {
		for _, e := range api.seenEvents() {
			if strings.Contains(e.Message, "already defined") {
				return ""
			}
		}
		return "no Event about a zone that is defined twice"
	})
	expect("the configuration before", "wiki.corp.example", "A 192.0.2.4")

	// A change of the resolvers does not suffer from that.
	if err := os.WriteFile(r.resolvConf, []byte("nameserver 127.53.0.9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		text, _ := os.ReadFile(filepath.Join(r.stateDir, "Corefile"))
		if !bytes.Contains(text, []byte("forward . 127.53.0.9")) || !bytes.Contains(text, []byte("192.0.2.4 wiki.corp.example")) {
			return "the configuration in use is " + string(text)
		}
		return ""
	})
	if err := os.WriteFile(r.resolvConf, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	api.remove(custom(nil))
	expect("deleted", "over.example")
	expect("the cluster is still there", "front.shop.svc.cluster.local", "A 10.43.1.1")
}

func TestReloadLosesNoQuery(t *testing.T) {
	api := newFakeAPI(t, shop()...)
	r := start(t, api, nil).awaitReady()
	var asked atomic.Int64
	failed := make(chan string, 100)
	done := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 {
		network := []string{"udp", "tcp"}[i%2]
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				rcode, a, err := query(network, r.addr.String(), "front.shop.svc.cluster.local", dns.TypeA)
				if err != nil && network == "tcp" {
					// A server may close a connection at any time; clients then
					// try once more (RFC 7766, section 6.2.4).
					rcode, a, err = query(network, r.addr.String(), "front.shop.svc.cluster.local", dns.TypeA)
				}
				asked.Add(1)
				if err != nil || !slices.Equal(a, []string{"A 10.43.1.1"}) {
					select {
					case failed <- fmt.Sprintf("over %s: %s %q %v", network, rcode, a, err):
					default:
					}
				}
			}
		})
	}
	for i := range 20 {
		want := fmt.Sprintf("192.0.2.%d", i)
		api.put(custom(map[string]string{"a.override": overExample(want)}))
		eventually(t, func() string {
			if _, a := r.ask("udp", "over.example", dns.TypeA); !slices.Equal(a, []string{"A " + want}) {
				return fmt.Sprintf("reload %d: %q", i, a)
			}
			return ""
		})
	}
	close(done)
	clients.Wait()
	close(failed)
	for f := range failed {
		t.Error(f)
	}
	t.Logf("%d queries during 20 reloads", asked.Load())
}
