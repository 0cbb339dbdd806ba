package storage

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

const (
	testNode = "edge-1"
	testHost = "edge-1.lan"
)

// bench is a provisioner that runs against a fake API.
type bench struct {
	*testing.T
	client *fake.Clientset
	dir    string
}

func start(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, UID: "node-uid", Labels: map[string]string{corev1.LabelHostname: testHost}}},
		class("local", corev1.PersistentVolumeReclaimDelete, nil), class("local-retain", corev1.PersistentVolumeReclaimRetain, nil))
	b := &bench{T: t, client: fake.NewClientset(objects...), dir: filepath.Join(t.TempDir(), "storage")}
	p := New(Options{NodeName: testNode, Dir: b.dir})
	p.client = b.client
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() { done <- p.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Run does not end")
		}
	})
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("not ready")
	}
	return b
}

func class(name string, reclaim corev1.PersistentVolumeReclaimPolicy, change func(*storagev1.StorageClass)) *storagev1.StorageClass {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: ProvisionerName, ReclaimPolicy: &reclaim, VolumeBindingMode: &wait}
	if change != nil {
		change(c)
	}
	return c
}

// claim makes a claim for which the scheduler has chosen this node.
func claim(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	name := "local"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "claim-uid", Annotations: map[string]string{annotationProvisioner: ProvisionerName, annotationSelectedNode: testNode}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &name,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
	if change != nil {
		change(c)
	}
	return c
}

func (b *bench) eventually(what string, condition func() bool) {
	b.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("not so after ten seconds: %s", what)
		}
	}
}

func (b *bench) volume() *corev1.PersistentVolume {
	list, err := b.client.CoreV1().PersistentVolumes().List(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

// warnings returns the messages of all Events of type Warning.
func (b *bench) warnings() string {
	list, err := b.client.CoreV1().Events(metav1.NamespaceAll).List(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	var messages []string
	for _, e := range list.Items {
		if e.Type == corev1.EventTypeWarning {
			messages = append(messages, e.Message)
		}
	}
	return strings.Join(messages, "\n")
}

func (b *bench) directories() []string {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != trashName {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestAClaimGetsItsVolume(t *testing.T) {
	b := start(t, claim(nil))
	b.eventually("a volume", func() bool { return b.volume() != nil })
	v := b.volume()
	path := filepath.Join(b.dir, "pvc-claim-uid_shop_data")
	if v.Name != "pvc-claim-uid" || v.Spec.Local == nil || v.Spec.Local.Path != path {
		t.Errorf("volume %s at %+v", v.Name, v.Spec.Local)
	}
	terms := v.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || terms[0].MatchExpressions[0].Key != corev1.LabelHostname || !slices.Equal(terms[0].MatchExpressions[0].Values, []string{testHost}) {
		t.Errorf("node affinity %+v", terms)
	}
	if r := v.Spec.ClaimRef; r == nil || r.UID != "claim-uid" || r.Namespace != "shop" || r.Name != "data" {
		t.Errorf("claim %+v", r)
	}
	if v.Annotations[annotationProvisionedBy] != ProvisionerName || v.Spec.StorageClassName != "local" || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		t.Errorf("volume %+v", v)
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		t.Errorf("directory: %v", err)
	}
}

func TestReadWriteOncePodIsAccepted(t *testing.T) {
	b := start(t, claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}))
	b.eventually("a volume", func() bool { return b.volume() != nil })
}

func TestRefusedClaims(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	other := func(name string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
	}
	cases := []struct {
		name   string
		change func(*corev1.PersistentVolumeClaim)
		want   string
	}{
		{"ReadWriteMany", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = append(c.Spec.AccessModes, corev1.ReadWriteMany)
		}, "access mode ReadWriteMany"},
		{"ReadOnlyMany", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		}, "access mode ReadOnlyMany"},
		{"block", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }, "block volume"},
		{"too large", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("4Ei")
		}, "asks for 4Ei and the node edge-1 has "},
		{"data source", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
		}, "dataSource"},
		{"selector", func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }, "selector"},
		{"class that binds at once", other("immediate"), "WaitForFirstConsumer"},
		{"class with parameters", other("tuned"), "parameters that local volumes do not know: fast"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			immediate := storagev1.VolumeBindingImmediate
			b := start(t, claim(c.change),
				class("immediate", corev1.PersistentVolumeReclaimDelete, func(c *storagev1.StorageClass) { c.VolumeBindingMode = &immediate }),
				class("tuned", corev1.PersistentVolumeReclaimDelete, func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"fast": "yes"} }))
			b.eventually("an Event that says "+c.want, func() bool { return strings.Contains(b.warnings(), c.want) })
			if b.volume() != nil || len(b.directories()) > 0 {
				t.Errorf("a volume was made: %v", b.directories())
			}
		})
	}
}

func TestNoRoomAsksTheSchedulerAgain(t *testing.T) {
	b := start(t, claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("4Ei")
	}))
	b.eventually("no node selected", func() bool {
		c, err := b.client.CoreV1().PersistentVolumeClaims("shop").Get(t.Context(), "data", metav1.GetOptions{})
		_, selected := c.Annotations[annotationSelectedNode]
		return err == nil && !selected
	})
}

func TestOthersClaimsAreLeftAlone(t *testing.T) {
	elsewhere := claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID, c.Annotations[annotationSelectedNode] = "elsewhere", "1", "edge-2"
	})
	unscheduled := claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID = "unscheduled", "2"
		delete(c.Annotations, annotationSelectedNode)
	})
	foreign := claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID, c.Annotations[annotationProvisioner] = "foreign", "3", "example.com/nfs"
	})
	b := start(t, elsewhere, unscheduled, foreign, claim(nil))
	b.eventually("a volume", func() bool { return b.volume() != nil })
	if got := b.directories(); !slices.Equal(got, []string{"pvc-claim-uid_shop_data"}) {
		t.Errorf("directories %v", got)
	}
	if text := b.warnings(); text != "" {
		t.Errorf("warnings %s", text)
	}
}

// release sets a volume's phase as the controller manager does.
func (b *bench) release() {
	b.Helper()
	v := b.volume()
	v.Status.Phase = corev1.VolumeReleased
	if _, err := b.client.CoreV1().PersistentVolumes().UpdateStatus(b.Context(), v, metav1.UpdateOptions{}); err != nil {
		b.Fatal(err)
	}
}

func TestAReleasedVolumeIsDeleted(t *testing.T) {
	b := start(t, claim(nil))
	b.eventually("a volume", func() bool { return b.volume() != nil })
	must(t, os.WriteFile(filepath.Join(b.dir, "pvc-claim-uid_shop_data", "file"), []byte("x"), 0o600))
	b.release()
	b.eventually("no directory", func() bool { return len(b.directories()) == 0 })
	b.eventually("no volume", func() bool { return b.volume() == nil })
	if left, _ := os.ReadDir(filepath.Join(b.dir, trashName)); len(left) > 0 {
		t.Errorf("the trash holds %v", left)
	}
}

func TestARetainedVolumeIsKept(t *testing.T) {
	retain := "local-retain"
	b := start(t, claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &retain }))
	b.eventually("a volume", func() bool { return b.volume() != nil })
	b.release()
	// When somebody deletes the volume, its directory stays and nothing holds it.
	now := metav1.Now()
	v := b.volume()
	v.DeletionTimestamp = &now
	if _, err := b.client.CoreV1().PersistentVolumes().Update(t.Context(), v, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("no finalizer", func() bool { v := b.volume(); return v == nil || len(v.Finalizers) == 0 })
	if len(b.directories()) != 1 {
		t.Error("the directory is gone")
	}
}

func TestAVolumeThatPointsElsewhereIsNotDeleted(t *testing.T) {
	precious := t.TempDir()
	b := start(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "trap", UID: "x", Annotations: map[string]string{annotationProvisionedBy: ProvisionerName, annotationNode: testNode}, Finalizers: []string{finalizer}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: precious}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
	})
	b.eventually("an Event", func() bool { return strings.Contains(b.warnings(), "delete it by hand") })
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestTheVolumeOfAGoneNodeCanBeDeleted(t *testing.T) {
	now := metav1.Now()
	b := start(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "old", UID: "x", DeletionTimestamp: &now, Annotations: map[string]string{annotationProvisionedBy: ProvisionerName, annotationNode: "gone"}, Finalizers: []string{finalizer}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/nowhere"}},
		},
	})
	b.eventually("no finalizer", func() bool { v := b.volume(); return v == nil || len(v.Finalizers) == 0 })
}

func TestFreeSpaceIsPublishedForEachClass(t *testing.T) {
	b := start(t)
	list := func() []storagev1.CSIStorageCapacity {
		l, err := b.client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return l.Items
	}
	b.eventually("two objects", func() bool { return len(list()) == 2 })
	for _, c := range list() {
		if c.Capacity.Value() <= 0 || c.NodeTopology.MatchLabels[corev1.LabelHostname] != testHost || c.OwnerReferences[0].UID != "node-uid" {
			t.Errorf("capacity %+v", c)
		}
	}
	if err := b.client.StorageV1().StorageClasses().Delete(t.Context(), "local", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("one object", func() bool { return len(list()) == 1 })
}

func TestUpToDate(t *testing.T) {
	node := &nodeIdentity{hostname: testHost, uid: "u"}
	have := New(Options{NodeName: testNode}).capacity("local", node, 1000)
	for free, want := range map[int64]bool{1000: true, 950: true, 1050: true, 949: false, 1051: false, 0: false} {
		if got := upToDate(have, node, free, false); got != want {
			t.Errorf("1000 published, %d free: up to date is %v", free, got)
		}
	}
	if upToDate(have, node, 999, true) || upToDate(have, &nodeIdentity{hostname: "x", uid: "u"}, 1000, false) || upToDate(have, &nodeIdentity{hostname: testHost, uid: "v"}, 1000, false) {
		t.Error("a difference is not seen")
	}
}
