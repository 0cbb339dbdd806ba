package controlplane

import (
	"fmt"

	"k8s.io/apiserver/pkg/features"
	"k8s.io/component-base/featuregate"
)

// setFeatures turns off what only serves large clusters. APIServerIdentity
// renews a lease every ten seconds, a write that a single server never needs,
// and the proxy between versions stands on it. SizeBasedListCostEstimate lists
// the keys of every resource each minute to guess what a list will cost; the
// number of objects, which is counted anyway, says enough here.
func setFeatures(gate featuregate.FeatureGate) error {
	mutable, ok := gate.(featuregate.MutableFeatureGate)
	if !ok {
		return fmt.Errorf("the feature gates are of the type %T and cannot be set", gate)
	}
	return mutable.SetFromMap(map[string]bool{
		string(features.APIServerIdentity):                   false,
		string(features.UnknownVersionInteroperabilityProxy): false,
		string(features.SizeBasedListCostEstimate):           false,
	})
}
