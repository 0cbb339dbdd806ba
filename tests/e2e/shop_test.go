package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
	"github.com/kombi-k8s/kombi/tests/images/testimages"
)

const shopNodePort = "30080"

// webInfo is what the web server shows of its surroundings.
type webInfo struct {
	Version, Host string
	Env, Files    map[string]string
}

// testShop runs the whole application and looks at each part of it.
func testShop(t *testing.T, k *harness.Kombi) {
	ns := k.Namespace(t, "shop", map[string]string{"pod-security.kubernetes.io/warn": "restricted"})
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/shop.yaml")
	k.Kubectl(t, "-n", ns, "rollout", "status", "statefulset/db", "--timeout=90s")
	k.Kubectl(t, "-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
	k.Kubectl(t, "-n", ns, "rollout", "status", "daemonset/agent", "--timeout=60s")
	clusterURL := "http://" + clusterIP(t, k, ns, "web")
	nodeURL := "http://" + harness.MachineIP + ":" + shopNodePort

	t.Run("services answer", func(t *testing.T) {
		for _, from := range []struct {
			name   string
			client *http.Client
			url    string
		}{
			{"ClusterIP from the node", harness.MachineClient(), clusterURL},
			{"NodePort from the node", harness.MachineClient(), nodeURL},
			{"NodePort from outside", harness.OutsideClient(), nodeURL},
		} {
			hosts := map[string]bool{}
			harness.Eventually(t, 20*time.Second, from.name+" reaches all three replicas", func(context.Context) error {
				host, err := harness.Get(from.client, from.url+"/hostname")
				if err != nil {
					return err
				}
				hosts[host] = true
				if len(hosts) != 3 {
					return fmt.Errorf("only %v answered", hosts)
				}
				return nil
			})
		}
	})
	t.Run("configuration arrives", func(t *testing.T) { testShopConfig(t, clusterURL) })
	t.Run("job and database", func(t *testing.T) {
		k.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/seed", "--timeout=90s")
		if n := orders(t, clusterURL); n < 3 {
			t.Errorf("%d orders after 3 completions", n)
		}
	})
	t.Run("disruption budget", func(t *testing.T) { testShopBudget(t, k, ns) })
	t.Run("rolling update and rollback lose no request", func(t *testing.T) {
		testShopRollout(t, k, ns, clusterURL, nodeURL)
	})
	t.Run("storage outlives its pod", func(t *testing.T) { testShopStorage(t, k, ns, clusterURL) })
	t.Run("a sick container is restarted", func(t *testing.T) { testShopLiveness(t, k, ns) })
	t.Run("cron job", func(t *testing.T) {
		harness.Eventually(t, 90*time.Second, "a report of the cron job", func(ctx context.Context) error {
			jobs, err := k.Client.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, j := range jobs.Items {
				if strings.HasPrefix(j.Name, "report-") && j.Status.Succeeded > 0 {
					out, err := k.TryKubectl("-n", ns, "logs", "job/"+j.Name)
					if err != nil || !strings.HasPrefix(out, "orders: ") {
						return fmt.Errorf("log of the report: %q, %w", out, err)
					}
					return nil
				}
			}
			return fmt.Errorf("%d jobs, none of them done", len(jobs.Items))
		})
	})
}

func clusterIP(t *testing.T, k *harness.Kombi, ns, name string) string {
	t.Helper()
	svc, err := k.Client.CoreV1().Services(ns).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc.Spec.ClusterIP
}

func orders(t *testing.T, url string) int {
	t.Helper()
	var n int
	harness.Eventually(t, 30*time.Second, "number of orders", func(context.Context) error {
		answer, err := harness.Get(harness.MachineClient(), url+"/orders")
		if err != nil {
			return err
		}
		n, err = strconv.Atoi(strings.TrimSpace(answer))
		return err
	})
	return n
}

func order(url string) (int, error) {
	resp, err := harness.MachineClient().Post(url+"/orders", "", nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var n int
	_, err = fmt.Fscan(resp.Body, &n)
	return n, err
}

func testShopConfig(t *testing.T, url string) {
	body, err := harness.Get(harness.MachineClient(), url+"/info")
	if err != nil {
		t.Fatal(err)
	}
	var info webInfo
	if err := json.Unmarshal([]byte(body), &info); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"GREETING": "hello", "SHOP_greeting": "hello", "PASSWORD": "correct horse", "NODE_NAME": harness.HostName,
		"MEMORY_LIMIT": strconv.Itoa(128 << 20), "WEB_SERVICE_PORT": "80", "KUBERNETES_SERVICE_PORT": "443",
	} {
		if info.Env[name] != want {
			t.Errorf("environment %s is %q, want %q", name, info.Env[name], want)
		}
	}
	for file, want := range map[string]string{
		"/config/motd.txt": "open around the clock\n", "/secret/password": "correct horse", "/secret/api-key": "battery staple",
		"/projected/labels": `app="web"`, "/projected/ca.crt": "BEGIN CERTIFICATE", "/work/note": "prepared by web-", "/work/beat": "beat ",
	} {
		if !strings.Contains(info.Files[file], want) {
			t.Errorf("file %s is %q, want %q", file, info.Files[file], want)
		}
	}
	if token := info.Files["/projected/token"]; strings.Count(token, ".") != 2 {
		t.Errorf("/projected/token is no token: %q", token)
	}
}

// testShopBudget evicts until the budget says no.
func testShopBudget(t *testing.T, k *harness.Kombi, ns string) {
	ctx := context.Background()
	pods, err := k.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	refused := false
	for _, p := range pods.Items {
		err := k.Client.PolicyV1().Evictions(ns).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: ns}})
		if apierrors.IsTooManyRequests(err) {
			refused = true
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !refused {
		t.Error("three evictions in a row passed a budget of minAvailable: 2")
	}
	k.Kubectl(t, "-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
}

// testShopRollout updates and rolls back while clients on three ways never stop.
func testShopRollout(t *testing.T, k *harness.Kombi, ns, clusterURL, nodeURL string) {
	loads := map[string]*harness.Load{
		"NodePort from outside":   harness.StartLoad(t, harness.OutsideClient(), nodeURL+"/version", 20*time.Millisecond),
		"ClusterIP from the node": harness.StartLoad(t, harness.MachineClient(), clusterURL+"/version", 20*time.Millisecond),
	}
	k.Kubectl(t, "-n", ns, "run", "client", "--image="+testimages.Busybox, "--restart=Never", "--", "sh", "-c",
		`trap 'stop=1' TERM; n=0; bad=0; while [ -z "$stop" ]; do n=$((n+1)); timeout 5 wget -q -O /dev/null http://web/version || { bad=$((bad+1)); date; }; sleep 0.05; done; echo "$n requests, $bad failed"`)
	k.WaitPod(t, ns, "client")

	for _, step := range []struct{ command, want string }{
		{"set image deployment/web web=" + testimages.WebV2, "v2"},
		{"rollout undo deployment/web", "v1"},
	} {
		k.Kubectl(t, append([]string{"-n", ns}, strings.Fields(step.command)...)...)
		k.Kubectl(t, "-n", ns, "rollout", "status", "deployment/web", "--timeout=120s")
		harness.Eventually(t, 30*time.Second, "only version "+step.want, func(ctx context.Context) error {
			pods, err := k.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				return err
			}
			if len(pods.Items) != 3 {
				return fmt.Errorf("%d pods", len(pods.Items))
			}
			return nil
		})
		for range 10 {
			if v, err := harness.Get(harness.MachineClient(), clusterURL+"/version"); err != nil || strings.TrimSpace(v) != step.want {
				t.Errorf("after %q: version %q, %v", step.command, v, err)
			}
		}
	}
	for name, load := range loads {
		requests, answers, failures := load.Stop()
		t.Logf("%s: %d requests, %v, %d failed", name, requests, answers, len(failures))
		if len(failures) > 0 {
			t.Errorf("%s: %d of %d requests failed:\n%s", name, len(failures), requests, strings.Join(failures[:min(5, len(failures))], "\n"))
		}
		if len(answers) != 2 {
			t.Errorf("%s: answers were %v", name, answers)
		}
	}
	k.Kubectl(t, "-n", ns, "exec", "client", "--", "kill", "1")
	harness.Eventually(t, 30*time.Second, "end of the client pod", func(context.Context) error {
		out, err := k.TryKubectl("-n", ns, "logs", "client")
		if err != nil || !strings.Contains(out, " requests, ") {
			return fmt.Errorf("%q, %w", out, err)
		}
		if !strings.Contains(out, " requests, 0 failed") {
			t.Errorf("ClusterIP by name from a pod: %s", out)
		}
		return nil
	})
}

// testShopStorage deletes the database pod and looks for what it stored.
func testShopStorage(t *testing.T, k *harness.Kombi, ns, url string) {
	ctx := context.Background()
	before, err := order(url)
	if err != nil {
		t.Fatal(err)
	}
	pod, err := k.Client.CoreV1().Pods(ns).Get(ctx, "db-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k.Kubectl(t, "-n", ns, "delete", "pod", "db-0")
	harness.Eventually(t, 60*time.Second, "a new db-0", func(ctx context.Context) error {
		again, err := k.Client.CoreV1().Pods(ns).Get(ctx, "db-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if again.UID == pod.UID {
			return fmt.Errorf("the old pod is still there")
		}
		return nil
	})
	k.WaitPod(t, ns, "db-0")
	if after := orders(t, url); after < before {
		t.Errorf("%d orders before, %d after", before, after)
	}
	claims, err := k.Client.CoreV1().PersistentVolumeClaims(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range claims.Items {
		if c.Status.Phase != corev1.ClaimBound || c.Status.Capacity.Storage().String() != "64Mi" {
			t.Errorf("claim %s is %s with %v", c.Name, c.Status.Phase, c.Status.Capacity)
		}
	}
	if len(claims.Items) != 2 {
		t.Errorf("%d claims for 2 replicas", len(claims.Items))
	}
}

// testShopLiveness makes one container fail its probe.
func testShopLiveness(t *testing.T, k *harness.Kombi, ns string) {
	ctx := context.Background()
	pods, err := k.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil || len(pods.Items) == 0 {
		t.Fatal(err)
	}
	pod := pods.Items[0]
	resp, err := harness.MachineClient().Post("http://"+pod.Status.PodIP+":8080/sick", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	harness.Eventually(t, 60*time.Second, "a restart of the sick container", func(ctx context.Context) error {
		p, err := k.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.Name == "web" && c.RestartCount == 1 && c.Ready {
				return nil
			}
		}
		return fmt.Errorf("%+v", p.Status.ContainerStatuses)
	})
}
