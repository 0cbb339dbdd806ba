package controlplane

import (
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/transport"
)

// informerClient is the name under which the controller manager's shared
// informers ask; they start when all controllers are built.
const informerClient = "shared-informers"

// whenBuilt wraps the controller manager's connections so that built is called
// with the first request of its informers.
func whenBuilt(built func()) transport.WrapperFunc {
	var once sync.Once
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			// The same client asks for the API's health before anything is built.
			if strings.HasPrefix(r.URL.Path, "/api") && strings.HasSuffix(r.UserAgent(), informerClient) {
				once.Do(built)
			}
			return next.RoundTrip(r)
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
