package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// app is the application that must not notice what happens to Kombi.
type app struct {
	k      *harness.Kombi
	name   string // of the server
	ns     string
	notes  string            // folder in which the pod "tool" leaves notes
	before map[string]string // its containers
}

// The Service of the application, as in its manifest.
const (
	serviceIP = "10.43.0.80"
	nodePort  = "http://" + harness.MachineIP + ":30080"
)

// startApp runs the application and remembers its containers.
func startApp(t *testing.T, k *harness.Kombi, server string) *app {
	t.Helper()
	a := &app{k: k, name: server, ns: k.Namespace(t, "app", nil), notes: filepath.Join(harness.Dir(), server, "notes")}
	text, err := os.ReadFile("testdata/app.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest := strings.ReplaceAll(string(text), "NOTES", a.notes)
	k.KubectlIn(t, manifest, "-n", a.ns, "apply", "-f", "-")
	a.waitRunning(t)
	a.answers(t)
	k.WaitSettled(t, a.ns)
	a.before = a.containers(t)
	return a
}

// waitRunning waits until every pod is Ready.
func (a *app) waitRunning(t *testing.T) {
	t.Helper()
	harness.Eventually(t, 90*time.Second, "application Ready", func(ctx context.Context) error {
		pods, err := a.k.Client.CoreV1().Pods(a.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for _, p := range pods.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if ready != 5 || len(pods.Items) != 5 {
			return fmt.Errorf("%d of %d pods are Ready, not 5", ready, len(pods.Items))
		}
		return nil
	})
}

// containers describes what must not change: the id of each container, how
// often it was restarted, and its first process with the time of its start.
func (a *app) containers(t *testing.T) map[string]string {
	t.Helper()
	pods, err := a.k.Client.CoreV1().Pods(a.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := firstProcesses(a.name)
	found := map[string]string{}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			id := c.ContainerID[strings.LastIndexByte(c.ContainerID, '/')+1:]
			process := first[id]
			if process == "" {
				process = "no process"
			}
			found[p.Name+"/"+c.Name] = fmt.Sprintf("container %.12s, restarted %d times, %s", id, c.RestartCount, process)
		}
	}
	return found
}

// unchanged fails the test when a container is not the one that it was.
func (a *app) unchanged(t *testing.T) {
	t.Helper()
	after := a.containers(t)
	for name, was := range a.before {
		if after[name] != was {
			t.Errorf("%s was: %s; is: %s", name, was, after[name])
		}
	}
	if len(after) != len(a.before) {
		t.Errorf("there were %d containers and are %d", len(a.before), len(after))
	}
}

// firstProcesses maps the container ids of a server to their first process.
func firstProcesses(server string) map[string]string {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroupRoot(server)) // cgroup v1 and hybrid
	tops = append(tops, "/sys/fs/cgroup"+cgroupRoot(server))
	found := map[string]string{}
	for _, top := range tops {
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			// Pods are below; in the group itself, of cgroup2, are Kombi and the tests.
			if err != nil || !d.IsDir() || path == top {
				return nil
			}
			procs, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			oldest := uint64(0)
			for _, pid := range strings.Fields(string(procs)) {
				if at := startTime(pid); at > 0 && (oldest == 0 || at < oldest) {
					oldest = at
					found[d.Name()] = fmt.Sprintf("process %s started at tick %d", pid, at)
				}
			}
			return nil
		})
		if len(found) > 0 {
			break
		}
	}
	return found
}

// startTime is when a process started, in ticks since the machine did; 0 when
// it is gone.
func startTime(pid string) uint64 {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold blanks; field 22 is the start time.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	var at uint64
	_, _ = fmt.Sscan(fields[19], &at)
	return at
}

// answers waits until exec works, DNS knows the Service in a pod, and the Service
// answers there and by its node port outside.
func (a *app) answers(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	harness.Eventually(t, 30*time.Second, "exec, DNS and Service in a pod", func(context.Context) error {
		// wget of a static busybox wants libraries to look up names; nc and nslookup do not.
		out, err := a.k.TryKubectl("-n", a.ns, "exec", "tool", "--", "sh", "-c",
			"nslookup web."+a.ns+".svc.cluster.local | grep -q "+serviceIP+
				" && printf 'GET /version HTTP/1.0\\r\\n\\r\\n' | nc -w 5 "+serviceIP+" 80")
		if err != nil || !strings.HasSuffix(out, "\nv1\n") {
			return fmt.Errorf("%q, %w", out, err)
		}
		return nil
	})
	harness.Eventually(t, 10*time.Second, "node port", func(context.Context) error {
		out, err := harness.Get(harness.OutsideClient(), nodePort+"/version")
		if err == nil && out != "v1\n" {
			err = fmt.Errorf("answer %q", out)
		}
		return err
	})
	return time.Since(began)
}

// callerLog is how much the long-lived connection of the pod "caller" has
// brought so far.
func (a *app) callerLog(t *testing.T) int64 {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(a.k.DataDir, "log", "pods", a.ns+"_caller_*", "caller", "*.log"))
	var size int64
	for _, path := range found {
		if info, err := os.Stat(path); err == nil {
			size += info.Size()
		}
	}
	return size
}

// waitCaller waits until the connection of the pod "caller" brings more.
func (a *app) waitCaller(t *testing.T, than int64) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "answers on the connection of the pod caller", func(context.Context) error {
		if size := a.callerLog(t); size <= than {
			return fmt.Errorf("its log still has %d bytes", size)
		}
		return nil
	})
}

// longConnection is one TCP connection that is kept.
type longConnection struct {
	client *http.Client
	url    string
	local  string // address of our end
}

// connect opens a connection to url with the dialer of client.
func connect(t *testing.T, client *http.Client, url string) *longConnection {
	t.Helper()
	transport := client.Transport.(*http.Transport).Clone()
	transport.DisableKeepAlives = false
	transport.IdleConnTimeout = 0
	l := &longConnection{client: &http.Client{Transport: transport, Timeout: 10 * time.Second}, url: url}
	t.Cleanup(transport.CloseIdleConnections)
	if err := l.ask(); err != nil {
		t.Fatal(err)
	}
	return l
}

// ask sends a request over the connection; it is an error when it needs another one.
func (l *longConnection) ask() error {
	local := ""
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) { local = c.Conn.LocalAddr().String() },
	})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url, nil)
	if err != nil {
		return err
	}
	response, err := l.client.Do(request)
	if err != nil {
		return err
	}
	err = drain(response)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", l.url, response.Status)
	case l.local == "":
		l.local = local
	case l.local != local:
		return fmt.Errorf("%s: the connection from %s is gone, this one is from %s", l.url, l.local, local)
	}
	return nil
}

// drain reads a response to its end, so that its connection can be used again.
func drain(response *http.Response) error {
	_, err := io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}

// sameProcesses makes sure, without an API, that the first process of
// each container is still the same.
func (a *app) sameProcesses(t *testing.T) {
	t.Helper()
	now := map[string]bool{}
	for _, process := range firstProcesses(a.name) {
		now[process] = true
	}
	for name, was := range a.before {
		if _, process, _ := strings.Cut(was, "times, "); !now[process] {
			t.Errorf("%s: its %s is gone", name, process)
		}
	}
}

// waitNewProcesses waits until every container has another first process.
func (a *app) waitNewProcesses(t *testing.T) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, "new containers", func(context.Context) error {
		for name, now := range a.containers(t) {
			if now == a.before[name] || strings.Contains(now, "no process") {
				return fmt.Errorf("%s is %s", name, now)
			}
		}
		return nil
	})
}

// asked is how often the pod "client" asked the Service over a new connection,
// and how many of its questions were not answered.
func (a *app) asked() (questions, failures int) {
	count := func(name string) int {
		data, _ := os.ReadFile(filepath.Join(a.notes, name))
		return bytes.Count(data, []byte("\n"))
	}
	return count("asked"), count("failed")
}
