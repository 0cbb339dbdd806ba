package version

import (
	"strings"
	"testing"
)

func TestInfoStringLeavesOutWhatIsUnknown(t *testing.T) {
	i := Info{Version: "v0.1.0", Go: "go1.26", Platform: "linux/amd64"}
	if got, want := i.String(), "kombi v0.1.0\ngo1.26 linux/amd64\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	i.Kubernetes, i.Commit, i.Date = "v1.37.2", "abc", "2026-01-02T03:04:05Z"
	for _, want := range []string{"kubernetes v1.37.2\n", "commit abc (2026-01-02T03:04:05Z)\n"} {
		if !strings.Contains(i.String(), want) {
			t.Errorf("%q is missing in %q", want, i.String())
		}
	}
}

func TestGetMatchesTheShortForms(t *testing.T) {
	if i := Get(); i.Version != String() || i.Kubernetes != Kubernetes() {
		t.Errorf("Get() = %+v disagrees with String() %q or Kubernetes() %q", i, String(), Kubernetes())
	}
}
