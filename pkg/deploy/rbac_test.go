package deploy

import (
	"context"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kombi-k8s/kombi/manifests"
)

// runRBAC runs the component until it is ready.
func runRBAC(t *testing.T, api *fakeAPI, roles fs.FS) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ready := false
	if err := NewRBAC(RBACOptions{Kube: api.config(), Roles: roles}).Run(ctx, func() { ready = true; cancel() }); err != nil {
		t.Fatal(err)
	}
	if !ready {
		t.Fatal("not ready after ten seconds")
	}
}

func TestRBACAppliesTheRealRolesOnce(t *testing.T) {
	roles, err := fs.Sub(manifests.FS(), manifests.RBACFolder)
	if err != nil {
		t.Fatal(err)
	}
	api := newFakeAPI(t)
	runRBAC(t, api, roles)
	for _, name := range []string{"network", "dns", "metrics", "storage"} {
		if api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:kombi:"+name) == nil {
			t.Errorf("there is no role of %s", name)
		}
	}
	if api.get("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:kombi:deploy") == nil {
		t.Error("the deployer has no rights")
	}
	api.taken()
	runRBAC(t, api, roles)
	if writes := api.taken(); len(writes) > 0 {
		t.Errorf("the second run writes %v", writes)
	}
}

func TestRBACFollowsDifferences(t *testing.T) {
	role := func(name, verb string) string {
		return "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: " + name + "}\nrules: [{apiGroups: [\"\"], resources: [pods], verbs: [" + verb + "]}]\n"
	}
	binding := func(to string) string {
		return "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: b}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: " + to + "}\nsubjects: []\n"
	}
	const root = "/apis/rbac.authorization.k8s.io/v1/"
	api := newFakeAPI(t)
	runRBAC(t, api, fstest.MapFS{"a.yaml": {Data: []byte(role("one", "get") + "---\n" + role("two", "get") + "---\n" + binding("one"))}})
	api.taken()
	runRBAC(t, api, fstest.MapFS{"a.yaml": {Data: []byte(role("one", "list") + "---\n" + binding("two"))}})
	writes := strings.Join(api.taken(), "\n")
	for _, want := range []string{"PUT " + root + "clusterroles/one", "DELETE " + root + "clusterroles/two", "DELETE " + root + "clusterrolebindings/b", "POST " + root + "clusterrolebindings/b"} {
		if !strings.Contains(writes, want) {
			t.Errorf("no %q in\n%s", want, writes)
		}
	}
}

func TestRBACRefusesOtherKinds(t *testing.T) {
	err := NewRBAC(RBACOptions{Roles: fstest.MapFS{"a.yaml": {Data: []byte(manifest("x"))}}}).Run(t.Context(), func() {})
	if err == nil || !strings.Contains(err.Error(), "neither a role nor a binding") {
		t.Errorf("error %v", err)
	}
}
