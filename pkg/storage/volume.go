package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// syncVolume deletes the directory and the object of a volume whose time has
// come, and lets go of one that is deleted but whose directory is to stay.
func (p *Provisioner) syncVolume(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Annotations[annotationNode] != p.opts.NodeName {
		return p.syncForeign(ctx, v)
	}
	deleting := v.DeletionTimestamp != nil
	released := v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed
	switch {
	case v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		if deleting && onlyOurs(v) {
			p.opts.Log.Info("volume deleted, directory kept", "volume", v.Name, "path", v.Spec.Local.Path)
			return p.letGo(ctx, v)
		}
		return nil
	// A volume that is deleted while it is bound keeps Kubernetes' own finalizer
	// for as long as a pod may use it.
	case !released && (!deleting || !onlyOurs(v)):
		return nil
	}
	// The cache may lag behind: between a claim's deletion and its return from a
	// backup the volume may have been given another claim.
	now, err := p.client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case now.UID != v.UID || now.Status.Phase != v.Status.Phase || now.Spec.PersistentVolumeReclaimPolicy != v.Spec.PersistentVolumeReclaimPolicy || now.Spec.Local == nil || now.Spec.Local.Path != v.Spec.Local.Path:
		return nil // the change is on its way here
	}
	if err := p.dir.remove(ctx, v.Spec.Local.Path, v.Name); err != nil {
		p.event(ctx, volumeReference(v), corev1.EventTypeWarning, reasonDeleteFailed, fmt.Sprintf("The directory of the volume cannot be deleted: %s; it is tried again.", err))
		return err
	}
	p.opts.Log.Info("volume deleted", "volume", v.Name, "path", v.Spec.Local.Path)
	if !deleting {
		err := p.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	p.askForReport()
	return p.letGo(ctx, v)
}

// syncForeign lets go of a volume that somebody deletes and whose node is no
// more: there is nobody else to do it, and nothing to delete.
func (p *Provisioner) syncForeign(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.DeletionTimestamp == nil || !onlyOurs(v) {
		return nil
	}
	_, err := p.client.CoreV1().Nodes().Get(ctx, v.Annotations[annotationNode], metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return p.letGo(ctx, v)
	}
	return err
}

// onlyOurs reports whether nobody but us holds on to a volume.
func onlyOurs(v *corev1.PersistentVolume) bool {
	return len(v.Finalizers) == 1 && v.Finalizers[0] == finalizer
}

// letGo takes the finalizer off.
func (p *Provisioner) letGo(ctx context.Context, v *corev1.PersistentVolume) error {
	now, err := p.client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != v.UID {
		return nil
	}
	if err != nil {
		return err
	}
	if !slices.Contains(now.Finalizers, finalizer) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": now.ResourceVersion, // the list is replaced as a whole
		"finalizers":      slices.DeleteFunc(slices.Clone(now.Finalizers), func(f string) bool { return f == finalizer }),
	}})
	if err != nil {
		return err
	}
	_, err = p.client.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // after a conflict the change brings the volume here again
	}
	return err
}
