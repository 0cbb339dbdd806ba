package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// config comes from the environment, as in any container.
type config struct {
	addr    string        // ADDR
	version string        // VERSION, set by the image
	db      string        // DB_ADDR, host:port of redis
	drain   time.Duration // DRAIN: how long to serve on after the order to stop
	warmUp  time.Duration // WARM_UP: how long a start takes
	volumes []string      // VOLUMES: folders whose files are shown
}

func configFromEnv() config {
	return config{
		addr:    envOr("ADDR", ":8080"),
		version: envOr("VERSION", "none"),
		db:      os.Getenv("DB_ADDR"),
		drain:   durationOr("DRAIN", 3*time.Second),
		warmUp:  durationOr("WARM_UP", 0),
		volumes: strings.Fields(os.Getenv("VOLUMES")),
	}
}

func envOr(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

func durationOr(name string, def time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv(name)); err == nil {
		return d
	}
	return def
}

type shop struct {
	config
	host     string
	started  time.Time
	draining atomic.Bool
	sick     atomic.Bool // the liveness probe fails, by request of a test
}

// serve answers until ctx ends, then drains: it reports not ready but answers
// on, so that no client meets a closed door before the Service forgot the pod.
func serve(ctx context.Context, cfg config) error {
	host, _ := os.Hostname()
	s := &shop{config: cfg, host: host, started: time.Now()}
	srv := &http.Server{Addr: cfg.addr, Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.ListenAndServe() }()
	log.Printf("web %s listens on %s", cfg.version, cfg.addr)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.draining.Store(true)
	log.Print("draining")
	time.Sleep(cfg.drain)
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := srv.Shutdown(end)
	log.Print("web ends")
	return err
}

func (s *shop) routes() http.Handler {
	mux := http.NewServeMux()
	check := func(bad func() bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if bad() {
				http.Error(w, "no", http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte("ok\n"))
		}
	}
	warming := func() bool { return time.Since(s.started) < s.warmUp }
	mux.HandleFunc("GET /startz", check(warming))
	mux.HandleFunc("GET /healthz", check(s.sick.Load))
	mux.HandleFunc("GET /readyz", check(func() bool { return s.draining.Load() || warming() }))
	mux.HandleFunc("GET /version", s.text(func(*http.Request) (string, error) { return s.version, nil }))
	mux.HandleFunc("GET /hostname", s.text(func(*http.Request) (string, error) { return s.host, nil }))
	mux.HandleFunc("GET /client", s.text(func(r *http.Request) (string, error) { return r.RemoteAddr, nil }))
	mux.HandleFunc("GET /info", s.info)
	mux.HandleFunc("GET /burn", s.text(burn))
	mux.HandleFunc("POST /orders", s.text(s.order))
	mux.HandleFunc("GET /orders", s.text(s.orders))
	mux.HandleFunc("POST /sick", s.text(func(*http.Request) (string, error) { s.sick.Store(true); return "sick", nil }))
	mux.HandleFunc("POST /log", s.text(func(r *http.Request) (string, error) { log.Print(r.URL.Query().Get("line")); return "logged", nil }))
	mux.HandleFunc("POST /alloc", s.text(alloc))
	return mux
}

// text answers with one line.
func (s *shop) text(f func(*http.Request) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Version", s.version)
		answer, err := f(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		_, _ = w.Write([]byte(answer + "\n"))
	}
}

// info shows everything that Kubernetes gave to the container.
func (s *shop) info(w http.ResponseWriter, _ *http.Request) {
	info := struct {
		Version, Host string
		Env           map[string]string
		Files         map[string]string
	}{s.version, s.host, map[string]string{}, map[string]string{}}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		info.Env[k] = v
	}
	for _, dir := range s.volumes {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			// A projected volume holds its files once more behind hidden names.
			if err != nil || strings.HasPrefix(d.Name(), "..") && d.IsDir() {
				return fs.SkipDir
			}
			if data, err := os.ReadFile(path); err == nil {
				info.Files[path] = string(data)
			}
			return nil
		})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(info)
}

// burn keeps one core busy for the asked time.
func burn(r *http.Request) (string, error) {
	d, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil {
		return "", err
	}
	end, n := time.Now().Add(d), 0
	for time.Now().Before(end) && r.Context().Err() == nil {
		for range 1000 {
			n = n*31 + 7
		}
	}
	return "burnt " + strconv.Itoa(n&1), nil
}

// alloc holds on to memory for as long as the process lives.
var held [][]byte

func alloc(r *http.Request) (string, error) {
	mb, err := strconv.Atoi(r.URL.Query().Get("mb"))
	if err != nil || mb < 0 || mb > 1024 {
		return "", errors.New("mb is a number up to 1024")
	}
	block := make([]byte, mb<<20)
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	held = append(held, block)
	return "held", nil
}

func (s *shop) order(r *http.Request) (string, error) {
	return redis(r.Context(), s.db, "INCR", "orders")
}
func (s *shop) orders(r *http.Request) (string, error) {
	return redis(r.Context(), s.db, "GET", "orders")
}
