package storage

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Annotations of the Kubernetes API on claims and volumes.
const (
	annotationProvisioner     = "volume.kubernetes.io/storage-provisioner"
	annotationProvisionerBeta = "volume.beta.kubernetes.io/storage-provisioner"
	annotationSelectedNode    = "volume.kubernetes.io/selected-node"
	annotationProvisionedBy   = "pv.kubernetes.io/provisioned-by"
)

// annotationNode names the Node that a volume is on. The node affinity names its
// host name, which may be another.
const annotationNode = "kombi.dev/node"

// watch sets up the three watches. The objects are cut down to what is needed
// before they are kept, and nothing is listed again at intervals.
func (p *Provisioner) watch() {
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0)
	p.claims = factory.Core().V1().PersistentVolumeClaims().Informer()
	p.volumes = factory.Core().V1().PersistentVolumes().Informer()
	p.classes = factory.Storage().V1().StorageClasses().Informer()

	// Errors here mean that an informer runs already, which it does not.
	_ = p.claims.SetTransform(slimClaim)
	_ = p.volumes.SetTransform(p.slimVolume)
	_ = p.classes.SetTransform(slimClass)

	_, _ = p.claims.AddEventHandler(handler(func(c *corev1.PersistentVolumeClaim) {
		if p.concerns(c) {
			p.queue.Add(item{claim: true, namespace: c.Namespace, name: c.Name})
		}
	}))
	_, _ = p.volumes.AddEventHandler(handler(func(v *corev1.PersistentVolume) {
		if p.made(v) {
			p.queue.Add(item{name: v.Name})
		}
	}))
	// A claim may have been refused because of its class.
	_, _ = p.classes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    p.classChanged,
		UpdateFunc: func(_, now any) { p.classChanged(now) },
		DeleteFunc: func(any) { p.askForReport() },
	})
}

func handler[T any](f func(T)) cache.ResourceEventHandler {
	call := func(obj any) {
		if t, ok := obj.(T); ok {
			f(t)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: call, UpdateFunc: func(_, now any) { call(now) }}
}

func (p *Provisioner) classChanged(obj any) {
	class, ok := obj.(*storagev1.StorageClass)
	if !ok || class.Provisioner != p.opts.ProvisionerName {
		return
	}
	p.askForReport()
	for _, obj := range p.claims.GetStore().List() {
		if c, ok := obj.(*corev1.PersistentVolumeClaim); ok && p.concerns(c) && className(c) == class.Name {
			p.queue.Add(item{claim: true, namespace: c.Namespace, name: c.Name})
		}
	}
}

// concerns reports whether a claim waits for a volume of this provisioner, on
// whichever node.
func (p *Provisioner) concerns(c *corev1.PersistentVolumeClaim) bool {
	if c.Spec.VolumeName != "" || c.DeletionTimestamp != nil {
		return false
	}
	provisioner, ok := c.Annotations[annotationProvisioner]
	if !ok {
		provisioner = c.Annotations[annotationProvisionerBeta]
	}
	return provisioner == p.opts.ProvisionerName
}

// made reports whether a volume was made by this provisioner, on whichever node.
func (p *Provisioner) made(v *corev1.PersistentVolume) bool {
	return v.Annotations[annotationProvisionedBy] == p.opts.ProvisionerName && v.Spec.Local != nil
}

func className(c *corev1.PersistentVolumeClaim) string {
	if name, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	if c.Spec.StorageClassName != nil {
		return *c.Spec.StorageClassName
	}
	return ""
}

// slimMeta keeps what identifies an object, and the annotations that are named.
func slimMeta(m metav1.ObjectMeta, annotations ...string) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		DeletionTimestamp: m.DeletionTimestamp, Finalizers: m.Finalizers,
	}
	for _, key := range annotations {
		if value, ok := m.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&slim, key, value)
		}
	}
	return slim
}

func slimClaim(obj any) (any, error) {
	c, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return obj, nil
	}
	slim := &corev1.PersistentVolumeClaim{
		ObjectMeta: slimMeta(c.ObjectMeta, annotationProvisioner, annotationProvisionerBeta, annotationSelectedNode, corev1.BetaStorageClassAnnotation),
	}
	if c.Spec.VolumeName != "" {
		slim.Spec.VolumeName = c.Spec.VolumeName // served; nothing else is of interest
		slim.Annotations = nil
		return slim, nil
	}
	slim.Spec = c.Spec
	return slim, nil
}

func (p *Provisioner) slimVolume(obj any) (any, error) {
	v, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return obj, nil
	}
	slim := &corev1.PersistentVolume{ObjectMeta: slimMeta(v.ObjectMeta, annotationProvisionedBy, annotationNode)}
	if !p.made(v) {
		slim.Annotations = nil // somebody else's: that it exists is all there is to know
		return slim, nil
	}
	slim.Spec.PersistentVolumeSource.Local = v.Spec.Local
	slim.Spec.ClaimRef = v.Spec.ClaimRef
	slim.Spec.PersistentVolumeReclaimPolicy = v.Spec.PersistentVolumeReclaimPolicy
	slim.Status.Phase = v.Status.Phase
	return slim, nil
}

func slimClass(obj any) (any, error) {
	c, ok := obj.(*storagev1.StorageClass)
	if !ok {
		return obj, nil
	}
	slim := *c
	slim.ObjectMeta = slimMeta(c.ObjectMeta)
	return &slim, nil
}
