package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AddOnSource says where the manifests of a set come from.
//
// +kubebuilder:validation:Enum=bundled;user
type AddOnSource string

const (
	// SourceBundled is a set that is part of the program.
	SourceBundled AddOnSource = "bundled"
	// SourceUser is a set from a server's manifests folder.
	SourceUser AddOnSource = "user"
)

// Condition types of an AddOn.
const (
	// ConditionReady is True when every document of the set is applied.
	ConditionReady = "Ready"
	// ConditionDegraded is True when a document could not be read, applied or
	// removed; its message names each one and says why.
	ConditionDegraded = "Degraded"
)

// Reasons of the conditions of an AddOn.
const (
	// ReasonApplied: every document is applied.
	ReasonApplied = "Applied"
	// ReasonProgressing: the set is being applied.
	ReasonProgressing = "Progressing"
	// ReasonSkipped: a .skip file says to leave the set alone.
	ReasonSkipped = "Skipped"
	// ReasonInvalidManifest: a file or a document cannot be understood.
	ReasonInvalidManifest = "InvalidManifest"
	// ReasonKindMissing: the API server does not know a document's kind yet.
	ReasonKindMissing = "KindMissing"
	// ReasonConflict: another set has the same object, or another manager
	// owns one of its fields.
	ReasonConflict = "Conflict"
	// ReasonApplyFailed: the API server refused a document.
	ReasonApplyFailed = "ApplyFailed"
	// ReasonPruneFailed: an object that left the set could not be deleted.
	ReasonPruneFailed = "PruneFailed"
	// ReasonAsExpected: nothing is wrong.
	ReasonAsExpected = "AsExpected"
)

// AddOn is the record of one set of manifests that Kombi keeps applied: what
// it contains, what became of it, and which objects it made.
//
// Kombi writes these objects; changing one has no effect. Change the files in
// the manifests folder instead.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ao,categories=kombi
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Objects",type=integer,JSONPath=`.status.objectCount`
// +kubebuilder:printcolumn:name="Path",type=string,priority=1,JSONPath=`.spec.path`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Applied",type=date,JSONPath=`.status.lastApplied`
type AddOn struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which set of manifests this is.
	Spec AddOnSpec `json:"spec"`
	// Status is what became of it.
	// +optional
	Status AddOnStatus `json:"status,omitempty"`
}

// AddOnSpec identifies a set of manifests and its contents.
type AddOnSpec struct {
	// Source is "bundled" for a set that is part of the program and "user" for
	// one from a server's manifests folder.
	Source AddOnSource `json:"source"`
	// Path is the set's file or folder: relative to the manifests folder for a
	// user's set, the folder inside the program for a bundled one.
	Path string `json:"path"`
	// Checksum is the SHA-256, in hex, over everything that decides what is
	// applied.
	Checksum string `json:"checksum"`
	// Server is the name of the server whose manifests folder holds the set;
	// empty for a bundled set. Only that server removes it.
	// +optional
	Server string `json:"server,omitempty"`
}

// AddOnStatus is the outcome of applying a set.
type AddOnStatus struct {
	// ObservedGeneration is the generation of the spec that this status
	// describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// LastApplied is when the contents of the set were last applied.
	// +optional
	LastApplied *metav1.Time `json:"lastApplied,omitempty"`
	// ObjectCount is the number of entries in objects.
	// +optional
	ObjectCount int32 `json:"objectCount,omitempty"`
	// Conditions are Ready and Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Objects are the objects that the set made and that are deleted when they
	// leave it.
	// +optional
	// +listType=atomic
	Objects []AppliedObject `json:"objects,omitempty"`
}

// AppliedObject names one object that a set made.
type AppliedObject struct {
	// Group is the API group; empty for the core group.
	// +optional
	Group string `json:"group,omitempty"`
	// Version is the API version that it was applied with.
	Version string `json:"version"`
	// Kind is the object's kind.
	Kind string `json:"kind"`
	// Namespace is empty for a cluster-scoped object.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name is the object's name.
	Name string `json:"name"`
	// UID is empty until the object is known to exist.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// AddOnList is a list of AddOns.
//
// +kubebuilder:object:root=true
type AddOnList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AddOn `json:"items"`
}
