package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/kombi-k8s/kombi/pkg/storage"
)

const nodeName = "edge-1"

// node registers a node that is ready and never does anything.
func node(t *testing.T) {
	t.Helper()
	nodes := shared.client.CoreV1().Nodes()
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("100")}
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelHostname: nodeName}}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { _ = nodes.Delete(context.Background(), nodeName, metav1.DeleteOptions{}) })
	// Controllers write to the node at the same time.
	must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		made, err := nodes.Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		made.Status.Capacity, made.Status.Allocatable = size, size
		made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		_, err = nodes.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		return err
	}))
}

// provisioner returns the component, acting as itself.
func provisioner(t *testing.T, dir string) *storage.Provisioner {
	t.Helper()
	identity, err := shared.identity("system:kombi:storage")
	must(t, err)
	return storage.New(storage.Options{Log: shared.log, Kube: identity, NodeName: nodeName, Dir: dir})
}

// claimAndPod makes a claim and a pod that uses it.
func claimAndPod(t *testing.T, namespace, name, class, size string, modes ...corev1.PersistentVolumeAccessMode) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}},
	}
	if class != "" {
		claim.Spec.StorageClassName = &class
	}
	_, err := shared.client.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), claim, metav1.CreateOptions{})
	must(t, err)
	_, err = shared.client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes:    []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// release deletes pod and claim.
func release(t *testing.T, namespace, name string) {
	t.Helper()
	now := int64(0)
	must(t, shared.client.CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	must(t, shared.client.CoreV1().PersistentVolumeClaims(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func directories(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestStorage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "storage")
	node(t)
	run(t, roles(t), deployer(t, ""))
	stop := run(t, provisioner(t, dir))
	const namespace = "volumes"
	_, err := shared.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(t, err)
	_, err = shared.client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		t.Fatal(err)
	}

	bound := func(name string) *corev1.PersistentVolume {
		t.Helper()
		var volume *corev1.PersistentVolume
		eventually(t, "claim "+name+" is bound", func() error {
			c, err := shared.client.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c.Status.Phase != corev1.ClaimBound {
				return fmt.Errorf("it is %s: %s", c.Status.Phase, strings.Join(warnings(t, namespace), "; "))
			}
			volume, err = shared.client.CoreV1().PersistentVolumes().Get(t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
			return err
		})
		return volume
	}

	claimAndPod(t, namespace, "once", "", "1Mi", corev1.ReadWriteOnce)
	claimAndPod(t, namespace, "pod", "local", "1Mi", corev1.ReadWriteOncePod)
	claimAndPod(t, namespace, "kept", "local-retain", "1Mi", corev1.ReadWriteOnce)
	claimAndPod(t, namespace, "many", "local", "1Mi", corev1.ReadWriteMany)
	once, kept := bound("once"), bound("kept")
	bound("pod")
	eventually(t, "the pod is scheduled", func() error {
		p, err := shared.client.CoreV1().Pods(namespace).Get(t.Context(), "once", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName != nodeName {
			err = errors.New("it is on " + p.Spec.NodeName)
		}
		return err
	})
	expectWarning(t, namespace, "access mode ReadWriteMany")
	// The scheduler knows the free space, and no node is asked in vain.
	claimAndPod(t, namespace, "huge", "local", "4Ei", corev1.ReadWriteOnce)
	expectWarning(t, namespace, "did not have enough free storage")

	must(t, os.WriteFile(filepath.Join(once.Spec.Local.Path, "file"), []byte("x"), 0o600))
	release(t, namespace, "once")
	release(t, namespace, "kept")
	expectGone(t, "volume", func() error {
		_, err := shared.client.CoreV1().PersistentVolumes().Get(t.Context(), once.Name, metav1.GetOptions{})
		return err
	})
	if got := directories(t, dir); slices.Contains(got, filepath.Base(once.Spec.Local.Path)) || !slices.Contains(got, filepath.Base(kept.Spec.Local.Path)) {
		t.Errorf("directories %v", got)
	}

	// A volume that is deleted before its claim goes with the claim, and one that
	// is released while nobody watches goes at the next start.
	claimAndPod(t, namespace, "early", "local", "1Mi", corev1.ReadWriteOnce)
	claimAndPod(t, namespace, "late", "local", "1Mi", corev1.ReadWriteOnce)
	early, late := bound("early"), bound("late")
	must(t, shared.client.CoreV1().PersistentVolumes().Delete(t.Context(), early.Name, metav1.DeleteOptions{}))
	if _, err := os.Stat(early.Spec.Local.Path); err != nil {
		t.Error("the directory of a bound volume is gone: ", err)
	}
	release(t, namespace, "early")
	expectGone(t, "volume", func() error {
		_, err := shared.client.CoreV1().PersistentVolumes().Get(t.Context(), early.Name, metav1.GetOptions{})
		return err
	})
	stop()
	release(t, namespace, "late")
	run(t, provisioner(t, dir))
	expectGone(t, "volume", func() error {
		_, err := shared.client.CoreV1().PersistentVolumes().Get(t.Context(), late.Name, metav1.GetOptions{})
		return err
	})
	if got := directories(t, dir); len(got) != 2 { // kept, and that of the claim "pod"
		t.Errorf("directories %v", got)
	}
}

func warnings(t *testing.T, namespace string) []string {
	t.Helper()
	list, err := shared.client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var texts []string
	for _, e := range list.Items {
		if e.Type == corev1.EventTypeWarning {
			texts = append(texts, e.Message)
		}
	}
	return texts
}

func expectWarning(t *testing.T, namespace, text string) {
	t.Helper()
	eventually(t, "a warning", func() error {
		all := strings.Join(warnings(t, namespace), "\n")
		if !strings.Contains(all, text) {
			return fmt.Errorf("none says %q:\n%s", text, all)
		}
		return nil
	})
}
