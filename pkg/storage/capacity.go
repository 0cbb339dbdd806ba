package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How often and at which change the free space is published. Each write costs
// disk on the server, for a number that is out of date the next moment; the
// provisioner checks again before it makes a volume.
const (
	capacityInterval = 3 * time.Minute
	capacityPercent  = 5
)

// Labels of the objects that publish the free space.
const (
	labelNode        = "kombi.dev/node"
	labelProvisioner = "kombi.dev/provisioner"
)

// askForReport has the free space published soon, if it changed enough.
func (p *Provisioner) askForReport() {
	select {
	case p.report <- struct{}{}:
	default:
	}
}

// publishCapacity keeps the published free space up to date. The scheduler reads
// it when it looks for a node for a claim; how it does so is described at
// CSIStorageCapacity and CSIDriver.spec.storageCapacity in the Kubernetes API.
func (p *Provisioner) publishCapacity(ctx context.Context) {
	wait := time.Duration(0)
	retry := 200 * time.Millisecond
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.report:
		case <-timer.C:
		}
		timer.Stop()
		if err := p.publish(ctx, false); err != nil {
			if !errors.Is(err, errNoNode) && ctx.Err() == nil {
				p.opts.Log.Debug("the free space cannot be published", "error", err)
			}
			wait, retry = retry, min(2*retry, capacityInterval)
			continue
		}
		wait, retry = capacityInterval, 200*time.Millisecond
	}
}

// publish writes one CSIStorageCapacity for each class of this provisioner, where
// the published number is off by more than capacityPercent, or at all if exact.
func (p *Provisioner) publish(ctx context.Context, exact bool) error {
	// Asked for each time: a node that was deleted and has registered again has
	// another uid, and what its predecessor owned is collected as garbage.
	node, err := p.askForNode(ctx)
	if err != nil {
		return err
	}
	free, err := p.dir.free()
	if err != nil {
		return err
	}
	api := p.client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: labelProvisioner + "=" + p.opts.ProvisionerName + "," + labelNode + "=" + node.hostname})
	if err != nil {
		return err
	}
	published := make(map[string]*storagev1.CSIStorageCapacity)
	for i := range list.Items {
		published[list.Items[i].StorageClassName] = &list.Items[i]
	}
	var failed error
	for _, obj := range p.classes.GetStore().List() {
		class, ok := obj.(*storagev1.StorageClass)
		if !ok || class.Provisioner != p.opts.ProvisionerName {
			continue
		}
		have := published[class.Name]
		delete(published, class.Name)
		switch {
		case have == nil:
			_, err = api.Create(ctx, p.capacity(class.Name, node, free), metav1.CreateOptions{})
		case !upToDate(have, node, free, exact):
			next := p.capacity(class.Name, node, free)
			next.ResourceVersion = have.ResourceVersion
			// The topology of such an object cannot be changed.
			if have.NodeTopology == nil || have.NodeTopology.MatchLabels[corev1.LabelHostname] != node.hostname {
				err = api.Delete(ctx, have.Name, metav1.DeleteOptions{})
				p.askForReport()
			} else {
				_, err = api.Update(ctx, next, metav1.UpdateOptions{})
			}
		default:
			continue
		}
		failed = errors.Join(failed, err)
	}
	for _, stale := range published { // of classes that are gone
		if err := api.Delete(ctx, stale.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// upToDate reports whether a published number is near enough to the truth.
func upToDate(have *storagev1.CSIStorageCapacity, node *nodeIdentity, free int64, exact bool) bool {
	if have.Capacity == nil || have.NodeTopology == nil || have.NodeTopology.MatchLabels[corev1.LabelHostname] != node.hostname ||
		len(have.OwnerReferences) != 1 || have.OwnerReferences[0].UID != node.uid {
		return false
	}
	was := have.Capacity.Value()
	if exact {
		return was == free
	}
	off := max(was-free, free-was)
	return off*100 <= was*capacityPercent
}

// capacity describes the free space of this node for one class. The object is
// owned by the Node, and so goes when the node is removed.
func (p *Provisioner) capacity(class string, node *nodeIdentity, free int64) *storagev1.CSIStorageCapacity {
	sum := sha256.Sum256([]byte(p.opts.ProvisionerName + "\x00" + p.opts.NodeName + "\x00" + class))
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem,
			Name:      "kombi-local-" + hex.EncodeToString(sum[:8]),
			Labels:    map[string]string{labelProvisioner: p.opts.ProvisionerName, labelNode: node.hostname},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Node", Name: p.opts.NodeName, UID: node.uid,
			}},
		},
		StorageClassName: class,
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node.hostname}},
		Capacity:         resource.NewQuantity(free, resource.BinarySI),
	}
}
