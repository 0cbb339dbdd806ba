package deploy

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// applied is the answer to an apply.
type applied = metav1.PartialObjectMetadata

const applyPatch = string(types.ApplyPatchType)

// explain turns an error of the API server into one sentence with the place, the
// cause and, where there is something to do, the next action.
func explain(doc document, err error) *problem {
	at := doc.where() + ": " + doc.key().String()
	switch {
	case errors.Is(err, errKindMissing):
		return &problem{kombiv1.ReasonKindMissing, fmt.Sprintf("%s waits for its kind: the API server does not know %s in %s; it is applied once a CustomResourceDefinition brings it", at, doc.gvk().Kind, doc.gvk().GroupVersion())}
	case apierrors.IsConflict(err):
		return &problem{kombiv1.ReasonConflict, fmt.Sprintf("%s is not applied, to leave another manager's fields alone: %s; take the fields out of the manifest, or take them over with the annotation %s: \"true\"", at, oneLine(err), AnnotationForce)}
	case missingNamespace(err):
		return &problem{kombiv1.ReasonApplyFailed, fmt.Sprintf("%s cannot be made: there is no namespace %q; make it, or add it to the manifests", at, doc.object.GetNamespace())}
	case apierrors.IsForbidden(err):
		return &problem{kombiv1.ReasonApplyFailed, fmt.Sprintf("%s is forbidden: %s", at, oneLine(err))}
	case apierrors.IsInvalid(err) && isImmutable(err):
		return &problem{kombiv1.ReasonApplyFailed, fmt.Sprintf("%s cannot be changed in place: %s; delete the object, or allow Kombi to make it again with the annotation %s: \"true\"", at, oneLine(err), AnnotationRecreate)}
	}
	return &problem{kombiv1.ReasonApplyFailed, fmt.Sprintf("%s was refused: %s", at, oneLine(err))}
}

// missingNamespace recognizes the refusal of an object because its namespace does
// not exist.
func missingNamespace(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces"
}

// isAdmission tells a refusal by an admission check from one by authorization.
func isAdmission(err error) bool {
	text := err.Error()
	return strings.Contains(text, "admission") || strings.Contains(text, "violates") ||
		strings.Contains(text, "exceeded quota") || strings.Contains(text, "being terminated")
}

func isImmutable(err error) bool {
	text := err.Error()
	return strings.Contains(text, "immutable") || strings.Contains(text, "updates to") || strings.Contains(text, "may not change")
}
