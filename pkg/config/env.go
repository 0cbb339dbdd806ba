package config

import (
	"sort"
	"strings"
)

// envAssignments returns the keys that the environment sets, and a problem for each KOMBI_ variable that is close
// to a key but is none. Other KOMBI_ variables belong to somebody else (Kubernetes itself makes KOMBI_PORT and the
// like for a Service named kombi) and are left alone. An empty variable is the same as none, as in unit files.
func envAssignments(environ []string, s schema) ([]assignment, Problems) {
	known := map[string]*Key{}
	var names []string
	for _, k := range s {
		known[k.Env()] = k
		names = append(names, strings.TrimPrefix(k.Env(), EnvPrefix))
	}
	var out []assignment
	var problems Problems
	environ = append([]string(nil), environ...)
	sort.Strings(environ)
	for _, e := range environ {
		name, val, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, EnvPrefix) || val == "" {
			continue
		}
		origin := Origin{Kind: FromEnv, Name: name}
		k := known[name]
		if k == nil {
			if internal(name) {
				continue
			}
			if near := Suggest(strings.TrimPrefix(name, EnvPrefix), names); near != "" {
				problems = append(problems, &Problem{Origin: origin, Cause: "there is no such key", Next: "did you mean " + EnvPrefix + near + "?"})
			}
			continue
		}
		a := assignment{key: k.Name, origin: origin, scalar: true}
		for _, part := range k.split(val) {
			a.values = append(a.values, valueAt{part, "", origin})
		}
		out = append(out, a)
	}
	return out, problems
}

// internal are variables that Kombi's own programs hand to each other.
func internal(name string) bool {
	switch name {
	case "KOMBI_BIN", "KOMBI_BIN_DIR", "KOMBI_LAUNCHER":
		return true
	}
	return strings.HasPrefix(name, "KOMBI_SUPERVISE_")
}

// split cuts one text into the elements of a list: at commas, or at line ends where elements may hold commas.
func (k *Key) split(text string) []string {
	if !k.List {
		return []string{text}
	}
	sep := ","
	if k.lines {
		sep = "\n"
	}
	var out []string
	for _, part := range strings.Split(text, sep) {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
