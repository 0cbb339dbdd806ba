package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options configure one server.
type Options struct {
	// Name is the folder of the server below the folder of the run, and short.
	Name string
	// Args are added to those of `kombi server`.
	Args []string
	// Archives are copied to the images folder before the first start.
	Archives []string
}

// Kombi is one server under test.
type Kombi struct {
	// DataDir holds its state, Kubeconfig is the administrator's.
	DataDir, Kubeconfig string
	// Log is what the server printed, of all starts.
	Log string
	// Client and Config reach its API as the administrator.
	Client *kubernetes.Clientset
	Config *rest.Config

	opts  Options
	tools string // folder with a link named kubectl

	started time.Time // the last time
	starts  int

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of cmd, once ended

	ending bool // its end was ordered
}

// New prepares a server without starting it.
func New(t testing.TB, opts Options) *Kombi {
	t.Helper()
	base := filepath.Join(Dir(), opts.Name)
	k := &Kombi{
		DataDir:    filepath.Join(base, "d"),
		Kubeconfig: filepath.Join(base, "kubeconfig"),
		Log:        filepath.Join(base, "kombi.log"),
		opts:       opts,
		tools:      filepath.Join(base, "tools"),
	}
	images := filepath.Join(k.DataDir, "images")
	for _, dir := range []string{images, k.tools} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(Binary(), filepath.Join(k.tools, "kubectl")); err != nil {
		t.Fatal(err)
	}
	for _, archive := range opts.Archives {
		data, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(images, filepath.Base(archive)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			k.dump(t)
		}
		k.end()
	})
	return k
}

// Start starts the server and returns once the process runs.
func (k *Kombi) Start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(k.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{"server",
		"--data-dir", k.DataDir,
		"--write-kubeconfig", k.Kubeconfig,
		"--node-name", HostName,
		"--cgroup-root", "/kombi-e2e-" + k.opts.Name,
		// The machine's disk may be fuller than the defaults allow.
		"--kubelet-arg", "eviction-hard=memory.available<50Mi,nodefs.available<1%,imagefs.available<1%",
	}, k.opts.Args...)
	cmd := exec.Command(Binary(), args...)
	cmd.Dir = Dir()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	k.started = time.Now()
	k.starts++
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", Binary(), err)
	}
	ended := make(chan struct{})
	k.mu.Lock()
	k.cmd, k.ended = cmd, ended
	k.mu.Unlock()
	go func() {
		err := cmd.Wait()
		k.mu.Lock()
		k.err = err
		if err == nil {
			k.err = errors.New("exit status 0")
		}
		if !k.ending {
			fmt.Printf("!!! kombi server ended by itself: %v\n", k.err)
		}
		k.ending = false
		k.mu.Unlock()
		close(ended)
	}()
}

// WaitReady waits until the node is Ready and returns how long that took from
// the start of the process.
func (k *Kombi) WaitReady(t testing.TB) time.Duration {
	t.Helper()
	start := k.started
	deadline := start.Add(90 * time.Second)
	var last error
	for time.Now().Before(deadline) {
		if !k.Running() {
			t.Fatalf("kombi server ended: %v\n%s", k.exitError(), tail(k.Log, 30))
		}
		before := last
		if last = k.nodeReady(); last == nil {
			k.join(t)
			return time.Since(start)
		}
		if testing.Verbose() && (before == nil || before.Error() != last.Error()) {
			t.Logf("%6s: %v", time.Since(start).Round(time.Millisecond), last)
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("the node is not Ready after %s: %v\n%s", time.Since(start).Round(time.Second), last, tail(k.Log, 40))
	return 0
}

// join moves the tests into the server's cgroup2, where service addresses are
// translated as they are for everything on a machine that has one server.
func (k *Kombi) join(t testing.TB) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", k.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range strings.Split(string(data), "\n") {
		group, ok := strings.CutPrefix(entry, "0::")
		if !ok {
			continue
		}
		for _, mount := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
			procs := filepath.Join(mount, group, "cgroup.procs")
			if _, err := os.Stat(procs); err != nil {
				continue
			}
			if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}

func (k *Kombi) nodeReady() error {
	if err := k.connect(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	node, err := k.Client.CoreV1().Nodes().Get(ctx, HostName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
		if k.starts == 1 {
			return nil
		}
		// After a restart the old condition is still there: a new lease shows
		// that the kubelet is back.
		lease, err := k.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, HostName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(k.started) {
			return errors.New("the kubelet has not renewed its lease")
		}
		return nil
	}
	return errors.New("the node has no Ready condition yet")
}

func (k *Kombi) connect() error {
	if k.Client != nil {
		return nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	k.Config, k.Client = config, client
	return nil
}

// Running tells whether the process is there.
func (k *Kombi) Running() bool {
	k.mu.Lock()
	ended := k.ended
	k.mu.Unlock()
	if ended == nil {
		return false
	}
	select {
	case <-ended:
		return false
	default:
		return true
	}
}

func (k *Kombi) exitError() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// PID is the process id of the server.
func (k *Kombi) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cmd.Process.Pid
}

// Stop ends the server in good order, as a service manager does.
func (k *Kombi) Stop(t testing.TB) {
	t.Helper()
	k.signal(t, syscall.SIGTERM)
	if err := k.exitError(); err != nil && err.Error() != "exit status 0" {
		t.Errorf("kombi server ended with %v on SIGTERM\n%s", err, tail(k.Log, 20))
	}
}

// Kill ends the server without notice.
func (k *Kombi) Kill(t testing.TB) {
	t.Helper()
	k.signal(t, syscall.SIGKILL)
}

func (k *Kombi) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	k.mu.Lock()
	cmd, ended := k.cmd, k.ended
	k.ending = true
	k.mu.Unlock()
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal kombi: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(60 * time.Second):
		t.Fatalf("kombi is still there a minute after %s\n%s", sig, tail(k.Log, 30))
	}
}

// end takes the process away; pods end with the namespaces.
func (k *Kombi) end() {
	k.mu.Lock()
	cmd, ended := k.cmd, k.ended
	k.ending = true
	k.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill()
	<-ended
}

// Env is the environment in which kubectl is this program and means this
// server.
func (k *Kombi) Env() []string {
	return append(os.Environ(), "KUBECONFIG="+k.Kubeconfig, "PATH="+k.tools+":"+os.Getenv("PATH"), "HOME="+filepath.Dir(k.tools))
}

// Run runs a program of the machine and returns what it printed.
func (k *Kombi) Run(ctx context.Context, stdin string, name string, args ...string) (stdout, stderr string, err error) {
	cmd := k.Command(ctx, name, args...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// Command prepares a program of the machine; "kubectl" and "kombi" are the
// program under test.
func (k *Kombi) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	switch name {
	case "kubectl":
		name, args = Binary(), append([]string{"kubectl"}, args...)
	case "kombi":
		name = Binary()
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = k.Env()
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Kubectl runs kubectl and fails the test when it fails.
func (k *Kombi) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return k.KubectlIn(t, "", args...)
}

// KubectlIn is Kubectl with a text on its standard input.
func (k *Kombi) KubectlIn(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stdout, stderr, err := k.Run(ctx, stdin, "kubectl", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

// TryKubectl runs kubectl and returns everything that it printed.
func (k *Kombi) TryKubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stdout, stderr, err := k.Run(ctx, "", "kubectl", args...)
	return stdout + stderr, err
}
