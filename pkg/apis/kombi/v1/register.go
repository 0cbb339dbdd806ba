package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of Kombi's own types.
const GroupName = "kombi.dev"

// GroupVersion returns kombi.dev/v1.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: "v1"}
}

// AddToScheme registers the types of this package with s. Give it a scheme of
// your own: a scheme that other goroutines already read must not be changed.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &AddOn{}, &AddOnList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
