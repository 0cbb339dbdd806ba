package dns

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy/caddyfile"
)

func TestParseSnippetRefuses(t *testing.T) {
	if err := registerPlugins(); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ key, text, want string }{
		"unknown suffix":              {"notes.txt", "log", ".override"},
		"unknown directive":           {"a.override", "nonsense", "Unknown directive 'nonsense'"},
		"unknown directive in line 2": {"a.override", "log\nnonsense", "a.override:2"},
		"names what there is":         {"a.override", "nonsense", "available are any, bufsize, cache"},
		"secret of the process":       {"a.override", "template IN TXT t { answer \"t TXT {$KOMBI_TOKEN}\" }", "environment"},
		"secret, Windows form":        {"a.override", "template IN TXT t { answer \"t TXT {%KOMBI_TOKEN%}\" }", "environment"},
		"import in the default block": {"a.override", "import /etc/shadow", "import cannot be used"},
		"import after a brace":        {"a.server", "example.org { import /etc/shadow\n}", "import cannot be used"},
		"import as an address":        {"a.server", "import /etc/shadow", "import cannot be used"},
		"hosts from a file":           {"a.override", "hosts /etc/shadow", "/etc/shadow of the node"},
		"forward from a file":         {"a.server", "example.org {\n forward . /etc/shadow\n}", "line 2: forward cannot read"},
		"forward with a key file":     {"a.server", "example.org {\n forward . 1.1.1.1 {\n tls /a /b\n }\n}", "cannot read"},
		"bind":                        {"a.server", "example.org {\n bind 0.0.0.0\n}", "line 2: bind cannot be used"},
		"bind in the default block":   {"a.override", "bind 0.0.0.0", "bind cannot be used"},
		"own directives":              {"a.override", "kombi_cluster 1", "reserved"},
		"ends the process":            {"a.override", "debug", "Unknown directive 'debug'"},
		"opens a port":                {"a.override", "prometheus :9153", "Unknown directive"},
		"takes over the log":          {"a.override", "kubernetes cluster.local", "Unknown directive"},
		"leaves the default block":    {"a.override", "log\n}\nevil.example {\n whoami", "line 2: this brace closes nothing"},
		"closes too much":             {"a.override", "log\n}", "line 2: this brace closes nothing"},
		"opens too much":              {"a.override", "cache {", "not closed"},
		"DNS over TLS":                {"a.server", "tls://example.org {\n whoami\n}", "only plain DNS"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parseSnippet(tc.key, tc.text, []string{"192.0.2.1"})
			if err == nil {
				t.Fatalf("accepted as %+v", s)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q lacks %q", err, tc.want)
			}
		})
	}
}

func TestParseSnippetReplacesTheNodesFiles(t *testing.T) {
	if err := registerPlugins(); err != nil {
		t.Fatal(err)
	}
	s, err := parseSnippet("a.server", "example.org {\n hosts {\n 192.0.2.9 a.example.org\n }\n forward . /etc/resolv.conf\n}", []string{"192.0.2.1", "192.0.2.2"})
	if err != nil {
		t.Fatal(err)
	}
	got := corefile{snippets: []snippet{s}, listen: testListen, domain: "cluster.local."}.String()
	for _, want := range []string{"example.org:5353 {", "bind 127.0.0.1", "hosts /dev/null {", "forward . 192.0.2.1 192.0.2.2"} {
		if !strings.Contains(got, want) {
			t.Errorf("configuration lacks %q:\n%s", want, got)
		}
	}
	if _, err := parseSnippet("a.server", "example.org {\n forward . /etc/resolv.conf\n}", nil); err == nil || !strings.Contains(err.Error(), "no resolver") {
		t.Errorf("without resolvers: error %v", err)
	}
}

func TestTokensSurviveWriting(t *testing.T) {
	if err := registerPlugins(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nested blocks":   "template IN A example.org {\n match ^(.*)$\n answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\nlog",
		"quotes":          "template IN TXT t.example {\n answer \"t.example. TXT \\\"hello # world\\\"\"\n}",
		"empty string":    "rewrite name exact a \"\"",
		"several lines":   "template IN TXT t.example {\n answer \"t.example. \nTXT x\"\n rcode NXDOMAIN\n}",
		"twice":           "rewrite name a b\nrewrite name c d\nrewrite {\n name e f\n}",
		"comments":        "# nothing\nlog # here\n",
		"inner quote":     "rewrite name regex (.*)\"x y",
		"backslashes":     "rewrite name regex (.*)\\.foo\\.bar {1}.baz \"a\\b c\"",
		"carriage return": "log\r\nrewrite name a b\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			before, err := parseSnippet("a.override", text, nil)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			b.WriteString(". {\n")
			for _, d := range slices.Sorted(maps.Keys(before.override)) {
				writeTokens(&b, before.override[d])
			}
			b.WriteString("}\n")
			blocks, err := caddyfile.Parse("again", strings.NewReader(b.String()), directives())
			if err != nil {
				t.Fatalf("%v in:\n%s", err, b.String())
			}
			for d, tokens := range before.override {
				if a, b := lines(tokens), lines(blocks[0].Tokens[d]); !slices.EqualFunc(a, b, slices.Equal) {
					t.Errorf("%s: %q became %q", d, a, b)
				}
			}
		})
	}
}

// lines groups the texts of tokens by line.
func lines(tokens []caddyfile.Token) [][]string {
	var out [][]string
	for i, t := range tokens {
		if i == 0 || tokens[i-1].Line+strings.Count(tokens[i-1].Text, "\n") != t.Line {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], t.Text)
	}
	return out
}

func TestOverridesReplaceDefaults(t *testing.T) {
	if err := registerPlugins(); err != nil {
		t.Fatal(err)
	}
	up := Upstreams{Servers: []string{"192.0.2.1"}}
	for name, tc := range map[string]struct {
		text, has, lacks string
	}{
		"cache":                      {"cache 5", "cache 5\n", "cache 30"},
		"errors":                     {"errors", "errors\n", "consolidate"},
		"forward of all names":       {"forward . 192.0.2.7", "forward . 192.0.2.7", "192.0.2.1"},
		"forward of one zone":        {"forward corp.example 192.0.2.7", "forward corp.example 192.0.2.7\n    forward . 192.0.2.1", "nothing"},
		"what others start with":     {"reload\nready\nloop\nhealth", "loop", "nothing"},
		"all names but by two lines": {"forward a.example 192.0.2.7\nforward . 192.0.2.8", "192.0.2.8", "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parseSnippet("a.override", tc.text, up.Servers)
			if err != nil {
				t.Fatal(err)
			}
			got := corefile{id: "1", listen: testListen, domain: "cluster.local.", upstreams: up, snippets: []snippet{s}}.String()
			if !strings.Contains(got, tc.has) || strings.Contains(got, tc.lacks) {
				t.Errorf("want %q and not %q in:\n%s", tc.has, tc.lacks, got)
			}
		})
	}
}
