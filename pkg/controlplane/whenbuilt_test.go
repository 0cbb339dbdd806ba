package controlplane

import (
	"net/http"
	"testing"
)

func TestTheFirstRequestOfTheInformersSaysThatControllersAreBuilt(t *testing.T) {
	calls := 0
	trip := whenBuilt(func() { calls++ })(roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil }))
	ask := func(path, agent string) {
		r, err := http.NewRequest(http.MethodGet, "https://127.0.0.1"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("User-Agent", agent)
		_, _ = trip.RoundTrip(r)
	}
	ask("/healthz", "kombi/shared-informers")
	ask("/api/v1/serviceaccounts", "kombi/service-account-controller")
	if calls != 0 {
		t.Fatal("too early")
	}
	ask("/api/v1/pods", "kombi/shared-informers")
	ask("/api/v1/nodes", "kombi/shared-informers")
	if calls != 1 {
		t.Fatalf("called %d times", calls)
	}
}
