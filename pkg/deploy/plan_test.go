package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	kombiv1 "github.com/kombi-k8s/kombi/pkg/apis/kombi/v1"
)

// testSet makes a set of ConfigMaps; a name may be given as namespace/name.
func testSet(name string, source kombiv1.AddOnSource, objects ...string) *set {
	s := newSet(name, source, name)
	for _, o := range objects {
		namespace, object, ok := strings.Cut(o, "/")
		if !ok {
			namespace, object = "default", o
		}
		s.add(o+".yaml", fmt.Appendf(nil, "{apiVersion: v1, kind: ConfigMap, metadata: {name: %q, namespace: %q}}", object, namespace), false)
	}
	return s
}

func entries(names ...string) []kombiv1.AppliedObject {
	var objects []kombiv1.AppliedObject
	for _, name := range names {
		objects = append(objects, kombiv1.AppliedObject{Version: "v1", Kind: "ConfigMap", Namespace: "default", Name: name, UID: "u"})
	}
	return objects
}

func TestPlan(t *testing.T) {
	const user, bundled = kombiv1.SourceUser, kombiv1.SourceBundled
	cases := []struct {
		name     string
		sets     []*set
		change   func([]*set)
		recorded map[string][]kombiv1.AppliedObject
		want     string // set:applied-left+kept
	}{
		{name: "apart", sets: []*set{testSet("kombi-a", bundled, "x"), testSet("b", user, "y")}, want: "b:y- kombi-a:x-"},
		{name: "a user's set wins over a bundled one", sets: []*set{testSet("kombi-a", bundled, "x", "y"), testSet("z", user, "x")}, want: "z:x- kombi-a:y-x"},
		{name: "the first of two users' sets wins", sets: []*set{testSet("b", user, "x"), testSet("a", user, "x")}, want: "a:x- b:-x"},
		{name: "no namespace is the default one", sets: []*set{testSet("kombi-a", bundled, "default/x"), testSet("z", user, "/x")}, want: "z:x- kombi-a:-x"},
		{name: "no namespace in the second set", sets: []*set{testSet("a", user, "default/x"), testSet("z", user, "/x")}, want: "a:x- z:-x"},
		{name: "a disabled set claims nothing", sets: []*set{testSet("kombi-a", bundled, "x"), testSet("kombi-b", bundled, "x")}, change: func(s []*set) { s[0].disabled = true }, want: "kombi-a:- kombi-b:x-"},
		{name: "a frozen set keeps what it has and claims no more", sets: []*set{testSet("kombi-a", bundled, "x", "y"), testSet("z", user, "x", "y")}, change: func(s []*set) { s[1].frozen = "z.skip" },
			recorded: map[string][]kombiv1.AppliedObject{"z": entries("x")}, want: "z:-+x kombi-a:y-x"},
		{name: "an incomplete set keeps what it has", sets: []*set{testSet("kombi-a", bundled, "x"), testSet("z", user, "y")}, change: func(s []*set) { s[1].incomplete = true },
			recorded: map[string][]kombiv1.AppliedObject{"z": entries("x", "y")}, want: "z:y-+x,y kombi-a:-x"},
		{name: "a ghost keeps what it has and is not worked on", sets: []*set{testSet("kombi-a", bundled, "x"), testSet("z", user)}, change: func(s []*set) { s[1].ghost, s[1].incomplete = true, true },
			recorded: map[string][]kombiv1.AppliedObject{"z": entries("x")}, want: "kombi-a:-x"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.sets)
			}
			var got []string
			for _, p := range plan(c.sets, c.recorded) {
				var apply, left, keep []string
				for _, d := range p.apply {
					apply = append(apply, d.object.GetName())
				}
				for _, l := range p.left {
					left = append(left, l.document.object.GetName())
				}
				for key := range p.keep {
					keep = append(keep, key.name)
				}
				slices.Sort(keep)
				text := p.name + ":" + strings.Join(apply, ",") + "-" + strings.Join(left, ",")
				if len(keep) > 0 {
					text += "+" + strings.Join(keep, ",")
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("plan %q, want %q", got, c.want)
			}
		})
	}
}

func TestTheFingerprintFollowsWhatOthersTake(t *testing.T) {
	sum := func(sets ...*set) string {
		for _, p := range plan(sets, nil) {
			if p.name == "kombi-a" {
				return p.checksum
			}
		}
		return ""
	}
	alone := sum(testSet("kombi-a", kombiv1.SourceBundled, "x"))
	if alone == sum(testSet("kombi-a", kombiv1.SourceBundled, "x"), testSet("z", kombiv1.SourceUser, "x")) {
		t.Error("the fingerprint is the same with and without an override")
	}
	if alone != sum(testSet("kombi-a", kombiv1.SourceBundled, "x"), testSet("z", kombiv1.SourceUser, "y")) {
		t.Error("the fingerprint depends on a set that takes nothing")
	}
}

func TestExpand(t *testing.T) {
	out, err := expand([]byte("ip: ${CLUSTER_DNS}, shell: $HOME ${home}"), map[string]string{"CLUSTER_DNS": "10.43.0.10"})
	if err != nil || string(out) != "ip: 10.43.0.10, shell: $HOME ${home}" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := expand([]byte("${CLUSTER_DNS}"), nil); err == nil || !strings.Contains(err.Error(), "CLUSTER_DNS") {
		t.Errorf("error %v", err)
	}
}

func TestCheckDisable(t *testing.T) {
	if err := checkDisable([]string{"dns", "network", "kombi-storage"}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"rbac", "crds", "kombi-crds"} {
		if err := checkDisable([]string{name}); err == nil {
			t.Errorf("%s can be disabled", name)
		}
	}
}
