package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func claimReference(c *corev1.PersistentVolumeClaim) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}
}

func volumeReference(v *corev1.PersistentVolume) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolume", Name: v.Name, UID: v.UID, ResourceVersion: v.ResourceVersion}
}

// event sends an Event. Its name follows from what it says, so that the same is
// said once while the Event lives (an hour by default), however often something
// is tried and by however many nodes: repetitions write nothing.
func (p *Provisioner) event(ctx context.Context, about corev1.ObjectReference, kind, reason, message string) {
	const most = 1000 // the API allows 1024 bytes
	if len(message) > most {
		message = strings.ToValidUTF8(message[:most], "") + " …"
	}
	sum := sha256.Sum256([]byte(string(about.UID) + reason + message))
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	name := about.Name[:min(len(about.Name), 200)]
	now := metav1.Now()
	_, err := p.client.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: strings.Trim(name, ".-") + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: about,
		Reason:         reason, Message: message, Type: kind,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source:              corev1.EventSource{Component: p.opts.ProvisionerName, Host: p.opts.NodeName},
		ReportingController: p.opts.ProvisionerName, ReportingInstance: p.opts.NodeName,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		p.opts.Log.Debug("an Event cannot be sent", "about", about.Name, "error", err)
	}
	if kind == corev1.EventTypeWarning && err == nil {
		p.opts.Log.Warn(message, "kind", about.Kind, "namespace", about.Namespace, "name", about.Name)
	}
}
