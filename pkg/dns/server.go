package dns

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coredns/caddy"
	corev1 "k8s.io/api/core/v1"
)

// server is CoreDNS with the configuration in use. Only Run's goroutine uses it.
type server struct {
	dns    *DNS
	report *reporter

	id       string
	leave    func()
	instance *caddy.Instance

	upstreams Upstreams
	custom    *corev1.ConfigMap // as last seen; nil when there is none
	snippets  []snippet         // of custom, in use
	good      map[string]string // the last text of each key of custom that worked
	applied   string
}

// setUpstreams takes other resolvers into use.
func (s *server) setUpstreams(u Upstreams) {
	if slices.Equal(u.Servers, s.upstreams.Servers) {
		s.upstreams.Why = u.Why
		return
	}
	before := s.upstreams
	s.upstreams = u
	s.snippets = s.read(s.custom) // they may forward to these resolvers
	if err := s.apply(); err != nil {
		s.upstreams = before
		s.dns.log.Warn("the node's new resolvers are not used, DNS goes on with those before", "resolvers", u.Servers, "error", err)
	}
}

// setCustom takes the ConfigMap coredns-custom, or nil for none, into use. A key
// that is wrong is left at its last good text.
func (s *server) setCustom(cm *corev1.ConfigMap) {
	before, goodBefore := s.snippets, maps.Clone(s.good)
	s.custom = cm
	s.snippets = s.read(cm)
	if err := s.apply(); err != nil {
		s.report.bad(cm, fmt.Errorf("its keys do not work together, DNS goes on with the configuration before: %w", err))
		s.snippets, s.good = before, goodBefore
		return
	}
	if cm != nil || len(before) > 0 {
		s.dns.log.Info("DNS uses the additions of the ConfigMap "+customName, "keys", keysOf(s.snippets))
	}
}

// read returns the snippets of cm that work, each on its own, and reports the
// others.
func (s *server) read(cm *corev1.ConfigMap) []snippet {
	if cm == nil {
		s.good = nil
		return nil
	}
	good := map[string]string{}
	var snippets []snippet
	for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
		text := cm.Data[key]
		one, err := s.check(key, text)
		if err != nil {
			last, ok := s.good[key]
			fate := "it is left out"
			if ok {
				fate = "its last good text stays in use"
			}
			s.report.bad(cm, fmt.Errorf("key %s cannot be used, %s: %w", key, fate, err))
			if !ok {
				continue
			}
			if one, err = s.check(key, last); err != nil {
				continue // the resolvers that it forwards to are gone
			}
			text = last
		}
		good[key] = text
		snippets = append(snippets, one)
	}
	s.good = good
	return snippets
}

// check reads a snippet and lets CoreDNS set it up, without starting it.
func (s *server) check(key, text string) (snippet, error) {
	one, err := parseSnippet(key, text, s.upstreams.Servers)
	if err != nil {
		return one, err
	}
	c := s.corefile()
	c.snippets = []snippet{one}
	if err := caddy.ValidateAndExecuteDirectives(input(key, c.String()), nil, true); err != nil {
		return one, err
	}
	return one, nil
}

func (s *server) corefile() corefile {
	d := s.dns
	if s.id == "" {
		s.id, s.leave = d.enter()
	}
	return corefile{id: s.id, listen: d.listen, domain: d.domain, reverse: d.reverse, upstreams: s.upstreams, snippets: s.snippets}
}

// apply brings the configuration into use. The sockets stay open and are handed
// from the old to the new server, so no query is lost; when the new configuration
// fails, the old server goes on.
func (s *server) apply() error {
	text := s.corefile().String()
	if text == s.applied {
		return nil
	}
	if s.instance == nil {
		instance, err := caddy.Start(input("Corefile", text))
		if err != nil {
			return fmt.Errorf("start DNS on %v: %w", s.dns.listen, err)
		}
		s.instance = instance
	} else {
		instance, err := s.instance.Restart(input("Corefile", text))
		if err == nil && instance == nil {
			err = errors.New("CoreDNS panicked while it read the configuration")
		}
		if err != nil {
			return err
		}
		s.instance = instance
	}
	s.applied = text
	s.write(text)
	return nil
}

// write keeps the configuration in use where a person can read it.
func (s *server) write(text string) {
	if s.dns.stateDir == "" {
		return
	}
	path := filepath.Join(s.dns.stateDir, "Corefile")
	temporary := path + ".new"
	err := os.MkdirAll(s.dns.stateDir, 0o700)
	if err == nil {
		err = os.WriteFile(temporary, []byte("# The configuration in use, written to be read only.\n"+text), 0o600)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		s.dns.log.Warn("the DNS configuration in use could not be written for reading; DNS itself works", "error", err)
	}
}

// stop ends CoreDNS after the queries that it is answering.
func (s *server) stop() {
	if s.leave != nil {
		defer s.leave()
	}
	if s.instance == nil {
		return
	}
	for _, err := range s.instance.ShutdownCallbacks() {
		s.dns.log.Warn("DNS did not stop cleanly", "error", err)
	}
	if err := s.instance.Stop(); err != nil {
		s.dns.log.Warn("DNS did not stop cleanly", "error", err)
	}
	s.instance.Wait()
}

func input(path, text string) caddy.Input {
	return caddy.CaddyfileInput{Filepath: path, Contents: []byte(text), ServerTypeName: "dns"}
}

func keysOf(snippets []snippet) string {
	keys := make([]string, len(snippets))
	for i, s := range snippets {
		keys[i] = s.key
	}
	return strings.Join(keys, " ")
}
