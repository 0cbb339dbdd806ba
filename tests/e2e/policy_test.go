package e2e

import (
	"strings"
	"testing"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// testPodSecurity applies a good and a bad pod where only good ones may run.
func testPodSecurity(t *testing.T, k *harness.Kombi) {
	ns := k.Namespace(t, "locked", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	out, err := k.TryKubectl("-n", ns, "apply", "-f", "testdata/restricted.yaml")
	if err == nil {
		t.Error("the bad pod was let in")
	}
	for _, want := range []string{
		"pod/good created", `pods "bad" is forbidden: violates PodSecurity "restricted:latest"`, "host namespaces (hostNetwork=true)", "privileged",
		"allowPrivilegeEscalation != false", "unrestricted capabilities", "runAsNonRoot != true", "seccompProfile",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	k.WaitPod(t, ns, "good")
}
