package deploy

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// maxMessage keeps a condition well below the 32 KiB that the API allows.
const maxMessage = 4000

// outcome is what became of one set in one pass.
type outcome struct {
	*planned
	applied  []kombiv1.AppliedObject // with their uids, in document order
	failures []problem               // documents that the API server did not take
	pruned   []objectKey
	unpruned []problem // objects that could not be deleted
	remain   []kombiv1.AppliedObject
	// unsure is set when a request ended without an answer, so that an object
	// may or may not have been made.
	unsure bool
}

// objects is the list to record: what was applied, what is kept, and what could
// not be deleted yet.
func (o *outcome) objects() []kombiv1.AppliedObject {
	all := slices.Concat(o.applied, o.remain)
	slices.SortFunc(all, compareObjects)
	return slices.CompactFunc(all, func(a, b kombiv1.AppliedObject) bool { return keyOf(a) == keyOf(b) })
}

func compareObjects(a, b kombiv1.AppliedObject) int {
	if c := strings.Compare(keyOf(a).String(), keyOf(b).String()); c != 0 {
		return c
	}
	// The entry that knows the uid first, so that it is the one that stays.
	return strings.Compare(string(b.UID), string(a.UID))
}

// retriable reports whether trying again, with nothing changed on disk, may have
// a better result.
func (o *outcome) retriable() bool { return len(o.failures)+len(o.unpruned) > 0 }

// troubles lists everything that is wrong, most basic first.
func (o *outcome) troubles() []problem {
	all := slices.Concat(o.problems, o.failures, o.unpruned)
	if !o.bundled() {
		// For a bundled set being overridden is a normal state; for a user's set
		// it is a mistake of the user's.
		for _, l := range o.left {
			all = append(all, problem{conflict, fmt.Sprintf("%s: %s comes from the set %q already; delete it from one of the two", l.document.where(), l.document.key(), l.owner.name)})
		}
	}
	return all
}

// conditions computes the conditions of the set's AddOn.
func (o *outcome) conditions() []metav1.Condition {
	ready := metav1.Condition{Type: kombiv1.ConditionReady}
	degraded := metav1.Condition{Type: kombiv1.ConditionDegraded, Status: metav1.ConditionFalse, Reason: kombiv1.ReasonAsExpected}
	troubles := o.troubles()
	switch {
	case o.frozen != "":
		ready.Status, ready.Reason = metav1.ConditionUnknown, kombiv1.ReasonSkipped
		ready.Message = fmt.Sprintf("The set is left alone because of the file %s; delete that file to have the set applied again.", o.frozen)
		return []metav1.Condition{ready, degraded}
	case len(troubles) == 0:
		ready.Status, ready.Reason = metav1.ConditionTrue, kombiv1.ReasonApplied
		ready.Message = o.summary()
	default:
		total := len(o.applied) + len(troubles)
		ready.Status, ready.Reason = metav1.ConditionFalse, troubles[0].reason
		ready.Message = clip(fmt.Sprintf("%d of %d applied. %s", len(o.applied), total, sentence(troubles[0].text)))
		degraded.Status, degraded.Reason = metav1.ConditionTrue, troubles[0].reason
		var texts []string
		for _, t := range troubles {
			texts = append(texts, sentence(t.text))
		}
		degraded.Message = clip(strings.Join(texts, "\n"))
	}
	return []metav1.Condition{ready, degraded}
}

// summary says what a set without troubles consists of.
func (o *outcome) summary() string {
	text := fmt.Sprintf("%s applied.", count(len(o.applied), "object"))
	for _, l := range o.left {
		text += fmt.Sprintf(" %s comes from the user's set %q.", l.document.key(), l.owner.name)
	}
	if len(o.skipped) > 0 {
		text += fmt.Sprintf(" %s left alone because of a .skip file.", count(len(o.skipped), "document"))
	}
	return clip(text)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// sentence ends the text with a full stop.
func sentence(text string) string {
	if strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}

func clip(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + " … (more is in the log)"
}

// status merges the outcome into a set's recorded status and reports whether
// anything but times is different.
func (o *outcome) status(old kombiv1.AddOnStatus, generation int64, now metav1.Time) (kombiv1.AddOnStatus, bool) {
	next := *old.DeepCopy()
	next.ObservedGeneration = generation
	next.Objects = o.objects()
	next.ObjectCount = int32(len(next.Objects))
	for _, c := range o.conditions() {
		c.ObservedGeneration = generation
		c.LastTransitionTime = now
		meta.SetStatusCondition(&next.Conditions, c)
	}
	if equality.Semantic.DeepEqual(old, next) {
		return old, false
	}
	next.LastApplied = &now
	return next, true
}
