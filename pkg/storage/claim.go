package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// finalizer keeps a PersistentVolume until its directory is dealt with, also when
// somebody deletes the volume before the claim.
const finalizer = "kombi.dev/local-volume"

// Reasons of the Events on claims and volumes; they are those of Kubernetes' own
// volume controllers.
const (
	reasonProvisioned     = "ProvisioningSucceeded"
	reasonProvisionFailed = "ProvisioningFailed"
	reasonDeleteFailed    = "VolumeFailedDelete"
)

// nodeIdentity is what is needed of this node's Node object.
type nodeIdentity struct {
	hostname string // the label that node affinity goes by
	uid      types.UID
}

// errNoNode says that the node has not registered yet.
var errNoNode = errors.New("this node has not registered with the API server yet")

// thisNode returns the identity of this node and remembers it.
func (p *Provisioner) thisNode(ctx context.Context) (*nodeIdentity, error) {
	p.mu.Lock()
	known := p.node
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	return p.askForNode(ctx)
}

func (p *Provisioner) askForNode(ctx context.Context) (*nodeIdentity, error) {
	node, err := p.client.CoreV1().Nodes().Get(ctx, p.opts.NodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errNoNode
	case err != nil:
		return nil, err
	}
	hostname := node.Labels[corev1.LabelHostname]
	if hostname == "" {
		return nil, fmt.Errorf("node %s has no label %s, which volumes are bound to", node.Name, corev1.LabelHostname)
	}
	known := &nodeIdentity{hostname: hostname, uid: node.UID}
	p.mu.Lock()
	p.node = known
	p.mu.Unlock()
	return known, nil
}

// syncClaim makes the volume of a claim, if it is for this node to make.
func (p *Provisioner) syncClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	class, ok := p.class(className(claim))
	if !ok || class.Provisioner != p.opts.ProvisionerName {
		return nil // when the class comes, so does the claim again
	}
	selected := claim.Annotations[annotationSelectedNode]
	if why := refuseClass(class); why != "" {
		// No node is selected for such a class, so every node sees the claim; the
		// Event has the same name from each and appears once.
		if selected == "" || selected == p.opts.NodeName {
			p.event(ctx, claimReference(claim), corev1.EventTypeWarning, reasonProvisionFailed, why)
		}
		return nil
	}
	if selected != p.opts.NodeName {
		return nil
	}
	if why := refuseClaim(claim); why != "" {
		p.event(ctx, claimReference(claim), corev1.EventTypeWarning, reasonProvisionFailed, why)
		return nil
	}
	node, err := p.thisNode(ctx)
	if err != nil {
		return err
	}
	name := "pvc-" + string(claim.UID)
	if _, exists, _ := p.volumes.GetStore().GetByKey(name); exists {
		return nil // the controller manager binds the two in a moment
	}

	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	free, err := p.dir.free()
	if err != nil {
		return p.failed(ctx, claim, err)
	}
	if size.Value() > free {
		return p.noRoom(ctx, claim, size, free)
	}
	path, err := p.dir.create(name, claim.Namespace, claim.Name)
	if err != nil {
		return p.failed(ctx, claim, err)
	}
	volume := p.volume(name, path, node.hostname, claim, class)
	if _, err := p.client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return p.failed(ctx, claim, fmt.Errorf("the PersistentVolume cannot be made: %w", err))
	}
	p.opts.Log.Info("volume made", "volume", name, "namespace", claim.Namespace, "claim", claim.Name, "size", size.String())
	p.event(ctx, claimReference(claim), corev1.EventTypeNormal, reasonProvisioned, "Made the volume "+name+" on the node "+p.opts.NodeName+".")
	return nil
}

// failed tells the claim's owner of a failure that is tried again.
func (p *Provisioner) failed(ctx context.Context, claim *corev1.PersistentVolumeClaim, err error) error {
	p.event(ctx, claimReference(claim), corev1.EventTypeWarning, reasonProvisionFailed, "The volume cannot be made on the node "+p.opts.NodeName+": "+err.Error()+"; it is tried again.")
	return err
}

// noRoom refuses a claim that this node has no space for, and asks the scheduler
// to choose again. The published free space is brought up to date first, or the
// scheduler would choose this node again.
func (p *Provisioner) noRoom(ctx context.Context, claim *corev1.PersistentVolumeClaim, size resource.Quantity, free int64) error {
	p.event(ctx, claimReference(claim), corev1.EventTypeWarning, reasonProvisionFailed, fmt.Sprintf(
		"The claim asks for %s and the node %s has %s free at %s; make room there, or ask for less.",
		size.String(), p.opts.NodeName, resource.NewQuantity(free, resource.BinarySI), p.opts.Dir))
	if err := p.publish(ctx, true); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         claim.UID, // not a new claim of the same name
		"annotations": map[string]any{annotationSelectedNode: nil},
	}})
	if err != nil {
		return err
	}
	_, err = p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// volume describes the PersistentVolume of a claim.
func (p *Provisioner) volume(name, path, hostname string, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	reclaim := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	mode := corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{annotationProvisionedBy: p.opts.ProvisionerName, annotationNode: p.opts.NodeName},
			Finalizers:  []string{finalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: reclaim,
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			VolumeMode:                    &mode,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hostname},
				}}}},
			}},
		},
	}
}

// refuseClass returns why no claim of a class can be served, or "".
func refuseClass(class *storagev1.StorageClass) string {
	if class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		return fmt.Sprintf("The StorageClass %s binds at once, but a local volume has to be made where its pod will run; use a class with volumeBindingMode: WaitForFirstConsumer.", class.Name)
	}
	if len(class.Parameters) > 0 {
		var names []string
		for name := range class.Parameters {
			names = append(names, name)
		}
		slices.Sort(names)
		return fmt.Sprintf("The StorageClass %s has parameters that local volumes do not know: %s; make the class again without them.", class.Name, strings.Join(names, ", "))
	}
	return ""
}

// refuseClaim returns why a claim cannot be served, or "".
func refuseClaim(claim *corev1.PersistentVolumeClaim) string {
	if mode := claim.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		return "The claim asks for a block volume, and local volumes are directories; use volumeMode: Filesystem or another StorageClass."
	}
	for _, mode := range claim.Spec.AccessModes {
		switch mode {
		case corev1.ReadWriteOnce, corev1.ReadWriteOncePod:
		default:
			return fmt.Sprintf("The claim asks for the access mode %s, and a local volume is on one node only; use ReadWriteOnce or ReadWriteOncePod, or a StorageClass of a shared file system.", mode)
		}
	}
	if claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil {
		return "The claim asks for a copy of other data (dataSource), and local volumes are not cloned or restored; use an empty volume and copy the data, or another StorageClass."
	}
	if claim.Spec.Selector != nil {
		return "The claim has a selector, which only matches volumes that exist already; remove the selector to have a volume made."
	}
	return ""
}
