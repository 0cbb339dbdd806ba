package dns

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// Suffixes of the keys in the ConfigMap coredns-custom, as on k3s.
const (
	overrideSuffix = ".override" // lines for the default server block
	serverSuffix   = ".server"   // server blocks of their own
)

// snippet is one key of coredns-custom, read and checked.
type snippet struct {
	key      string
	override map[string][]caddyfile.Token // directives for the default block
	servers  []caddyfile.ServerBlock
}

// parseSnippet reads one key of coredns-custom. resolvConf is what stands for
// /etc/resolv.conf in a forward directive: the resolvers that do not lead back
// here.
//
// A snippet can be written by whoever may edit one ConfigMap, and this process is
// root on the node. So nothing in it may reach files or the environment of the
// process, or open other addresses.
func parseSnippet(key, text string, resolvConf []string) (snippet, error) {
	s := snippet{key: key}
	override := strings.HasSuffix(key, overrideSuffix)
	if !override && !strings.HasSuffix(key, serverSuffix) {
		return s, fmt.Errorf("the key must end in %s (lines for the default server block) or %s (server blocks)", overrideSuffix, serverSuffix)
	}
	if strings.Contains(text, "{$") || strings.Contains(text, "{%") {
		return s, errors.New("environment variables cannot be used: they are those of the whole node")
	}
	depth := 0
	for d := caddyfile.NewDispenser(key, strings.NewReader(text)); d.Next(); {
		switch d.Val() {
		case "import":
			return s, fmt.Errorf("line %d: import cannot be used: it reads files of the node", d.Line())
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth < 0 {
			return s, fmt.Errorf("line %d: this brace closes nothing", d.Line())
		}
	}
	if depth > 0 {
		return s, errors.New("a brace is not closed")
	}
	if override {
		text = ". { " + text + "\n}\n" // on one line, so that line numbers stay right
	}
	blocks, err := caddyfile.Parse(key, strings.NewReader(text), directives())
	if err != nil {
		return s, explainParse(err)
	}
	for i := range blocks {
		if err := checkBlock(&blocks[i], resolvConf); err != nil {
			return s, err
		}
	}
	if override {
		s.override = blocks[0].Tokens
	} else {
		s.servers = blocks
	}
	return s, nil
}

// explainParse adds what a person may not know to CoreDNS's parse errors.
func explainParse(err error) error {
	if strings.Contains(err.Error(), "Unknown directive") {
		public := slices.DeleteFunc(directives(), func(d string) bool { return isOwn(d) || d == "bind" })
		slices.Sort(public)
		return fmt.Errorf("%w; available are %s", err, strings.Join(public, ", "))
	}
	return err
}

// checkBlock refuses what a server block may not do and replaces what means
// something else here than in a pod.
func checkBlock(b *caddyfile.ServerBlock, resolvConf []string) error {
	for _, key := range b.Keys {
		if scheme, _, ok := strings.Cut(key, "://"); ok && scheme != "dns" {
			return fmt.Errorf("server block %q: only plain DNS is served here", key)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.Tokens)) {
		tokens := b.Tokens[name]
		switch {
		case name == "bind":
			return fmt.Errorf("line %d: bind cannot be used: every server block answers on the cluster's DNS address", tokens[0].Line)
		case isOwn(name):
			return fmt.Errorf("line %d: %s is reserved", tokens[0].Line, name)
		case name == "hosts":
			changed, err := hostsWithoutFile(tokens)
			if err != nil {
				return err
			}
			b.Tokens[name] = changed
		case name == "forward":
			changed, err := forwardWithoutFile(tokens, resolvConf)
			if err != nil {
				return err
			}
			b.Tokens[name] = changed
		}
	}
	return nil
}

// hostsWithoutFile makes a hosts directive read no file: it would read the
// node's /etc/hosts.
func hostsWithoutFile(tokens []caddyfile.Token) ([]caddyfile.Token, error) {
	var out []caddyfile.Token
	for i, t := range tokens {
		out = append(out, t)
		if t.Text != "hosts" || (i > 0 && tokens[i-1].Line == t.Line) {
			continue
		}
		if i+1 < len(tokens) && tokens[i+1].Line == t.Line && tokens[i+1].Text != "{" {
			return nil, fmt.Errorf("line %d: hosts cannot read the file %s of the node; write the entries into the block", t.Line, tokens[i+1].Text)
		}
		out = append(out, caddyfile.Token{File: t.File, Line: t.Line, Text: "/dev/null"})
	}
	return out, nil
}

// forwardWithoutFile replaces /etc/resolv.conf by resolvConf and refuses other
// files.
func forwardWithoutFile(tokens []caddyfile.Token, resolvConf []string) ([]caddyfile.Token, error) {
	var out []caddyfile.Token
	for _, t := range tokens {
		switch {
		case t.Text == resolvConfFile && len(resolvConf) == 0:
			return nil, fmt.Errorf("line %d: this node has no resolver to forward to", t.Line)
		case t.Text == resolvConfFile:
			for _, server := range resolvConf {
				out = append(out, caddyfile.Token{File: t.File, Line: t.Line, Text: server})
			}
		case strings.HasPrefix(t.Text, "/"):
			return nil, fmt.Errorf("line %d: forward cannot read the file %s of the node; name the resolvers instead", t.Line, t.Text)
		default:
			out = append(out, t)
		}
	}
	return out, nil
}
