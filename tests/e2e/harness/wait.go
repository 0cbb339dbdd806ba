package harness

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Eventually waits until check returns nil. The last error says what was
// missing when the time is over.
func Eventually(t testing.TB, limit time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	var last error
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := check(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not after %s: %v", what, time.Since(start).Round(time.Second), last)
		case <-time.After(pause):
		}
	}
}

// Namespace makes a namespace for one test and removes it afterwards, without
// waiting. When the test fails it prints first what happened there.
func (k *Kombi) Namespace(t testing.TB, name string, labels map[string]string) string {
	t.Helper()
	ctx := context.Background()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := k.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatalf("namespace %s: %v", name, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range [][]string{
				{"get", "all,pvc,endpointslices", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"}, {"describe", "pods"},
			} {
				out, _ := k.TryKubectl(append([]string{"-n", name}, args...)...)
				t.Logf("kubectl -n %s %s\n%s", name, strings.Join(args, " "), out)
			}
		}
		_ = k.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	})
	// Pods need the default service account, which a controller makes.
	Eventually(t, 30*time.Second, "default service account of "+name, func(ctx context.Context) error {
		_, err := k.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return name
}

// WaitPod waits until a pod is Ready.
func (k *Kombi) WaitPod(t testing.TB, namespace, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	Eventually(t, 90*time.Second, fmt.Sprintf("pod %s/%s Ready", namespace, name), func(ctx context.Context) error {
		var err error
		if pod, err = k.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("phase %s, %s", pod.Status.Phase, waiting(pod))
	})
	return pod
}

// waiting is what the containers of a pod wait for.
func waiting(pod *corev1.Pod) string {
	var why []string
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range list {
			if w := c.State.Waiting; w != nil {
				why = append(why, fmt.Sprintf("%s waits: %s %s", c.Name, w.Reason, w.Message))
			}
			if x := c.State.Terminated; x != nil {
				why = append(why, fmt.Sprintf("%s ended: %s %d", c.Name, x.Reason, x.ExitCode))
			}
		}
	}
	return strings.Join(why, "; ")
}

// dump prints the state of the whole server after a failure.
func (k *Kombi) dump(t testing.TB) {
	t.Logf("end of %s:\n%s", k.Log, tail(k.Log, 80))
	if k.Client == nil || !k.Running() {
		t.Logf("kombi server is not running: %v", k.exitError())
		return
	}
	for _, args := range [][]string{{"get", "nodes,pods,svc,pvc", "-A", "-o", "wide"}} {
		out, _ := k.TryKubectl(args...)
		t.Logf("kubectl %s\n%s", strings.Join(args, " "), out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, errOut, _ := k.Run(ctx, "", "kombi", "status", "--data-dir", k.DataDir)
	t.Logf("kombi status\n%s%s", out, errOut)
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
