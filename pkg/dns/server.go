package dns

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
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
	accepted  map[string]string // the keys and texts of custom that work, also together
	snippets  []snippet         // what was read of accepted
	applied   string
}

// setUpstreams takes other resolvers into use.
func (s *server) setUpstreams(u Upstreams) {
	if slices.Equal(u.Servers, s.upstreams.Servers) {
		s.upstreams = u
		return
	}
	s.update(u, s.custom) // snippets may forward to these resolvers, too
}

// setCustom takes the ConfigMap coredns-custom, or nil for none, into use.
func (s *server) setCustom(cm *corev1.ConfigMap) {
	had := len(s.snippets) > 0
	s.custom = cm
	if s.update(s.upstreams, cm) && (had || len(s.snippets) > 0) {
		s.dns.log.Info("DNS uses the additions of the ConfigMap "+customName, "keys", keysOf(s.snippets))
	}
}

// update brings resolvers and ConfigMap into use as far as they work: a key that
// is wrong stays at its last good text, and when the keys do not work together,
// all do. It tells whether the ConfigMap's keys work together.
func (s *server) update(u Upstreams, cm *corev1.ConfigMap) bool {
	upstreamsBefore, snippetsBefore := s.upstreams, s.snippets
	s.upstreams = u
	accepted, snippets := s.read(cm)
	s.snippets = snippets
	err := s.apply()
	if err == nil {
		s.accepted = accepted
		return true
	}
	s.report.bad(cm, fmt.Errorf("its keys do not work together, DNS goes on with those before: %w", err))
	s.snippets = s.readAgain()
	if err := s.apply(); err != nil {
		s.upstreams, s.snippets = upstreamsBefore, snippetsBefore
		s.dns.log.Warn("the node's new resolvers are not used, DNS goes on with those before", "resolvers", u.Servers, "error", err)
	}
	return false
}

// read returns the keys of cm with the texts that work, each on its own, and
// reports the others.
func (s *server) read(cm *corev1.ConfigMap) (accepted map[string]string, snippets []snippet) {
	if cm == nil {
		return nil, nil
	}
	accepted = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
		text := cm.Data[key]
		one, err := s.check(key, text)
		if err != nil {
			last, ok := s.accepted[key]
			fate := "it is left out"
			if ok {
				fate = "its last good text stays in use"
			}
			s.report.bad(cm, fmt.Errorf("key %s cannot be used, %s: %w", key, fate, err))
			if !ok {
				continue
			}
			text = last
			accepted[key] = text
			if one, err = s.check(key, text); err != nil {
				continue // the resolvers that it forwards to are gone
			}
		}
		accepted[key] = text
		snippets = append(snippets, one)
	}
	return accepted, snippets
}

// readAgain reads what was accepted before for the resolvers of now.
func (s *server) readAgain() []snippet {
	var snippets []snippet
	for _, key := range slices.Sorted(maps.Keys(s.accepted)) {
		if one, err := s.check(key, s.accepted[key]); err == nil {
			snippets = append(snippets, one)
		}
	}
	return snippets
}

// place is what CoreDNS puts in front of a message to say where in the whole
// configuration an error is; a snippet's author does not know that one.
var place = regexp.MustCompile(`\S+:\d+ - Error during parsing: `)

// check reads a snippet and lets CoreDNS set it up, without starting it.
func (s *server) check(key, text string) (snippet, error) {
	one, err := parseSnippet(key, text, s.upstreams.Servers)
	if err != nil {
		return one, err
	}
	c := s.corefile()
	c.snippets = []snippet{one}
	if err := caddy.ValidateAndExecuteDirectives(input(key, c.String()), nil, true); err != nil {
		return one, errors.New(place.ReplaceAllString(err.Error(), ""))
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
			return errors.New(strings.TrimPrefix(err.Error(), "starting with listener file descriptors: "))
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
