package deploy

import (
	"cmp"
	"slices"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// planned is what is to be done for one set.
type planned struct {
	*set
	apply    []document
	left     []leftOut          // documents whose object comes from another set
	keep     map[objectKey]bool // recorded objects that are not to be pruned
	checksum string             // over everything that decides what is applied
}

// leftOut is a document that is not applied because of another set.
type leftOut struct {
	document document
	owner    *set
}

// plan decides which set each object comes from. A user's set wins over a bundled
// one, and among users' sets the first by name; so the answer depends on the sets
// alone and not on the order in which files were written.
//
// recorded tells which objects a set has made so far, by the name of its AddOn.
// A set that is skipped, or that cannot be read in full, keeps the objects it
// has, and so wins them from others too. plan touches nothing but its result.
func plan(sets []*set, recorded map[string][]kombiv1.AppliedObject) []*planned {
	ordered := slices.Clone(sets)
	slices.SortStableFunc(ordered, func(a, b *set) int {
		return cmp.Or(cmp.Compare(rankOfSource(a), rankOfSource(b)), cmp.Compare(a.name, b.name))
	})

	owners := make(map[objectKey]*set)
	claim := func(key objectKey, s *set) {
		if owners[key] == nil {
			owners[key] = s
		}
	}
	kept := make(map[*set]map[objectKey]bool)
	for _, s := range ordered {
		kept[s] = keptObjects(s, recorded[s.name])
		if s.disabled {
			continue
		}
		for key := range kept[s] {
			claim(key, s)
		}
		if s.frozen != "" {
			continue
		}
		for _, d := range s.documents {
			for _, key := range d.key().variants() {
				claim(key, s)
			}
		}
	}

	var plans []*planned
	for _, s := range ordered {
		if s.ghost {
			continue
		}
		p := &planned{set: s, keep: kept[s]}
		switch {
		case s.disabled, s.frozen != "":
		default:
			for _, d := range s.documents {
				if owner := otherOwner(owners, d.key(), s); owner != nil {
					p.left = append(p.left, leftOut{d, owner})
					continue
				}
				p.apply = append(p.apply, d)
			}
		}
		p.checksum = p.fingerprint()
		plans = append(plans, p)
	}
	return plans
}

// otherOwner returns the set that has the object instead of s, or nil.
func otherOwner(owners map[objectKey]*set, key objectKey, s *set) *set {
	for _, variant := range key.variants() {
		if owner := owners[variant]; owner != nil && owner != s {
			return owner
		}
	}
	return nil
}

// keptObjects are the recorded objects that stay whether or not a document for
// them is seen.
func keptObjects(s *set, recorded []kombiv1.AppliedObject) map[objectKey]bool {
	keep := make(map[objectKey]bool)
	if s.disabled {
		return keep
	}
	all := s.frozen != "" || s.incomplete
	for _, object := range recorded {
		key := keyOf(object)
		if all || slices.ContainsFunc(s.skipped, func(d document) bool { return slices.Contains(d.key().variants(), key) }) {
			keep[key] = true
		}
	}
	return keep
}

// fingerprint extends the checksum of the set's contents by what other sets take
// from it.
func (p *planned) fingerprint() string {
	f := newSet(p.name, p.source, p.path)
	f.note(p.set.checksum())
	if p.disabled {
		f.note("disabled")
	}
	for _, l := range p.left {
		f.note("left", l.document.key().String(), l.owner.name)
	}
	return f.checksum()
}

func rankOfSource(s *set) int {
	if s.bundled() {
		return 1
	}
	return 0
}

func keyOf(o kombiv1.AppliedObject) objectKey {
	return objectKey{group: o.Group, kind: o.Kind, namespace: o.Namespace, name: o.Name}
}

// phase is when a kind is applied, so that what others depend on is there first.
// Objects are deleted in the opposite order.
type phase int

const (
	phaseNamespaces phase = iota
	phaseDefinitions
	phaseSettings // what workloads refer to or are limited by
	phaseWorkloads
	phaseInterceptors // what can make every later request fail
	phases
)

func phaseOf(group, kind string) phase {
	switch group {
	case "":
		switch kind {
		case "Namespace":
			return phaseNamespaces
		case "Pod", "ReplicationController":
			return phaseWorkloads
		}
		return phaseSettings
	case "apiextensions.k8s.io":
		return phaseDefinitions
	case "admissionregistration.k8s.io", "apiregistration.k8s.io":
		return phaseInterceptors
	case "rbac.authorization.k8s.io", "storage.k8s.io", "scheduling.k8s.io", "node.k8s.io",
		"networking.k8s.io", "policy", "flowcontrol.apiserver.k8s.io", "resource.k8s.io",
		"certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io":
		return phaseSettings
	}
	return phaseWorkloads
}
