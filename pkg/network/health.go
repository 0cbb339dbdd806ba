package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// health serves the health check ports of Services, as kube-proxy does: status 200 on
// nodes that have an endpoint, 503 on others. (Its package for that brings a netfilter
// client and a proxy's metrics along.) Nothing listens while no Service asks for it.
type health struct {
	well func() error // whether the node serves at all

	mu        sync.Mutex
	endpoints map[types.NamespacedName]int
	open      map[types.NamespacedName]*healthPort
}

type healthPort struct {
	number uint16
	server *http.Server
}

func newHealth(well func() error) *health {
	return &health{well: well, open: map[types.NamespacedName]*healthPort{}}
}

// sync takes over what the table says.
func (h *health) sync(ports map[types.NamespacedName]uint16, endpoints map[types.NamespacedName]int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endpoints = endpoints
	for name, p := range maps.Clone(h.open) {
		if ports[name] != p.number {
			_ = p.server.Close()
			delete(h.open, name)
		}
	}
	var errs []error
	for name, number := range ports {
		if h.open[name] != nil {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(number))))
		if err != nil {
			errs = append(errs, fmt.Errorf("health check port of Service %s: %w; end what uses the port, or give the Service another healthCheckNodePort", name, err))
			continue
		}
		server := &http.Server{Handler: h.handler(name), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10}
		h.open[name] = &healthPort{number, server}
		go func() { _ = server.Serve(listener) }()
	}
	return errors.Join(errs...)
}

// close stops listening.
func (h *health) close() { _ = h.sync(nil, nil) }

func (h *health) handler(name types.NamespacedName) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		well := h.well() == nil
		h.mu.Lock()
		n := h.endpoints[name]
		h.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(n))
		if n == 0 || !well {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"service":        map[string]string{"namespace": name.Namespace, "name": name.Name},
			"localEndpoints": n, "serviceProxyHealthy": well,
		})
	})
}
