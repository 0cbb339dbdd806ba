package supervisor

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// identityNamespace holds a Secret for each node with the fingerprint of its key.
const (
	identityNamespace = "kube-system"
	identityField     = "key-sha256"
)

// Secrets keeps identities as Secrets of the cluster. A name belongs to the key that
// had it first, until its Node object is deleted.
type Secrets struct{ Client kubernetes.Interface }

// Claim implements [Identities].
func (s Secrets) Claim(ctx context.Context, nodeName, fingerprint string) error {
	secrets := s.Client.CoreV1().Secrets(identityNamespace)
	name := nodeName + ".node-identity"
	want := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: identityNamespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "kombi"}},
		Data:       map[string][]byte{identityField: []byte(fingerprint)},
	}
	have, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if _, err := s.Client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{}); err == nil {
			return taken(nodeName)
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the cluster cannot say whether there is a node %s: %w", nodeName, err)
		}
		_, err = secrets.Create(ctx, want, metav1.CreateOptions{})
		return explain(err)
	}
	if err != nil {
		return explain(err)
	}
	if string(have.Data[identityField]) == fingerprint {
		return nil
	}
	if _, err := s.Client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{}); err == nil {
		return taken(nodeName)
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("the cluster cannot say whether there is a node %s: %w", nodeName, err)
	}
	want.ResourceVersion = have.ResourceVersion // two machines at once: one of them wins
	_, err = secrets.Update(ctx, want, metav1.UpdateOptions{})
	return explain(err)
}

func taken(nodeName string) error {
	return &Refused{fmt.Sprintf("another machine is the node %s: choose another node-name; or, if this machine was installed anew, delete the old node first (kubectl delete node %s)",
		nodeName, nodeName)}
}

func explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the cluster cannot remember the node's identity: %w", err)
}
