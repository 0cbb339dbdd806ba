package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
	"github.com/kombi-k8s/kombi/tests/images/testimages"
)

// testKubectl uses the commands that need the kubelet.
func testKubectl(t *testing.T, k *harness.Kombi) {
	ns := k.Namespace(t, "tools", nil)
	k.Kubectl(t, "-n", ns, "apply", "-f", "testdata/tools.yaml")
	for _, pod := range []string{"tool", "parrot", "web"} {
		k.WaitPod(t, ns, pod)
	}
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, k *harness.Kombi, ns string)
	}{
		{"exec", testExec}, {"logs", testLogs}, {"attach", testAttach}, {"cp", testCopy},
		{"port-forward", testPortForward}, {"top", testTop}, {"debug", testDebug},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.run(t, k, ns)
		})
	}
}

func testExec(t *testing.T, k *harness.Kombi, ns string) {
	if out := k.Kubectl(t, "-n", ns, "exec", "tool", "--", "sh", "-c", "echo $((6*7)); hostname"); out != "42\ntool\n" {
		t.Errorf("exec prints %q", out)
	}
	if out := k.KubectlIn(t, "from stdin", "-n", ns, "exec", "-i", "tool", "--", "cat"); out != "from stdin" {
		t.Errorf("exec -i prints %q", out)
	}
	out, err := k.TryKubectl("-n", ns, "exec", "tool", "--", "sh", "-c", "exit 7")
	if err == nil || !strings.Contains(out, "exit code 7") {
		t.Errorf("exit code: %v, %q", err, out)
	}
}

func testLogs(t *testing.T, k *harness.Kombi, ns string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := k.Command(ctx, "kubectl", "-n", ns, "logs", "-f", "--tail=1", "tool")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(pipe)
	last := 0
	for i := range 5 {
		if !lines.Scan() {
			t.Fatalf("the log ended after %d lines: %v", i, lines.Err())
		}
		var n int
		if _, err := fmt.Sscanf(lines.Text(), "line %d", &n); err != nil || last != 0 && n != last+1 {
			t.Fatalf("line %q follows line %d", lines.Text(), last)
		}
		last = n
	}
}

func testAttach(t *testing.T, k *harness.Kombi, ns string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := k.Command(ctx, "kubectl", "-n", ns, "attach", "-i", "parrot")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	if _, err := io.WriteString(stdin, "hello\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if lines.Text() == "parrot says hello" {
			return
		}
	}
	t.Errorf("attach ended without an answer: %v", lines.Err())
}

func testCopy(t *testing.T, k *harness.Kombi, ns string) {
	dir := t.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	data := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	if err := os.WriteFile(there, data, 0o640); err != nil {
		t.Fatal(err)
	}
	k.Kubectl(t, "-n", ns, "cp", there, "tool:/tmp/copy")
	k.Kubectl(t, "-n", ns, "cp", "tool:/tmp/copy", back)
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes went there, %d came back, %v", len(data), len(got), err)
	}
}

func testPortForward(t *testing.T, k *harness.Kombi, ns string) {
	for _, target := range []string{"pod/web", "service/web"} {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		port := "8080"
		if target == "service/web" {
			port = "80"
		}
		cmd := k.Command(ctx, "kubectl", "-n", ns, "port-forward", target, ":"+port)
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(pipe).ReadString('\n')
		addr := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
		if addr == "" {
			t.Errorf("port-forward %s prints %q, %v", target, line, err)
		} else if answer, err := harness.Get(harness.MachineClient(), "http://"+addr+"/version"); err != nil || answer != "v1\n" {
			t.Errorf("port-forward %s: %q, %v", target, answer, err)
		}
		cancel()
		_ = cmd.Wait()
	}
}

func testTop(t *testing.T, k *harness.Kombi, ns string) {
	node := regexp.MustCompile(`(?m)^` + harness.HostName + ` +\d+m +\d+% +\d+Mi +\d+%`)
	pod := regexp.MustCompile(`(?m)^tool +\d+m +\d+Mi`)
	harness.Eventually(t, 60*time.Second, "kubectl top", func(context.Context) error {
		for _, c := range []struct {
			args []string
			want *regexp.Regexp
		}{{[]string{"top", "nodes"}, node}, {[]string{"-n", ns, "top", "pods"}, pod}} {
			if out, err := k.TryKubectl(c.args...); err != nil || !c.want.MatchString(out) {
				return fmt.Errorf("kubectl %v: %q, %w", c.args, out, err)
			}
		}
		return nil
	})
}

func testDebug(t *testing.T, k *harness.Kombi, ns string) {
	t.Run("ephemeral container", func(t *testing.T) {
		k.Kubectl(t, "-n", ns, "debug", "web", "--image="+testimages.Busybox, "--target=web", "--container=dbg", "--profile=general", "--",
			"sh", "-c", "ps; wget -q -O - http://127.0.0.1:8080/version")
		harness.Eventually(t, 30*time.Second, "output of the debug container", func(context.Context) error {
			out, err := k.TryKubectl("-n", ns, "logs", "web", "-c", "dbg")
			if err != nil || !strings.Contains(out, "/web serve") || !strings.HasSuffix(out, "v1\n") {
				return fmt.Errorf("%q, %w", out, err)
			}
			return nil
		})
	})
	t.Run("node", func(t *testing.T) {
		out := k.Kubectl(t, "-n", ns, "debug", "node/"+harness.HostName, "--image="+testimages.Busybox, "--profile=sysadmin", "--", "ls", "/host/etc/os-release")
		name := regexp.MustCompile(`node-debugger-\S+`).FindString(out)
		if name == "" {
			pods, err := k.Client.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods.Items {
				if strings.HasPrefix(p.Name, "node-debugger-") {
					name = p.Name
				}
			}
		}
		harness.Eventually(t, 30*time.Second, "output of the node debugger", func(context.Context) error {
			out, err := k.TryKubectl("-n", ns, "logs", name)
			if err != nil || out != "/host/etc/os-release\n" {
				return fmt.Errorf("%q, %w", out, err)
			}
			return nil
		})
	})
}
