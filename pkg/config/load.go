package config

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// LoadOptions says where configuration comes from. The zero value reads the process's environment and
// /etc/kombi/config.yaml for a server.
type LoadOptions struct {
	// Role is the program that is configured; 0 means Server.
	Role Role
	// Flags is the parsed flag set that BindFlags filled; nil means no flags.
	Flags *pflag.FlagSet
	// Env is the environment as in os.Environ; nil means the process's own.
	Env []string
	// Files replaces the search for the main file and its drop-ins, when it is not nil.
	Files []string
	// Hostname gives the default of node-name; nil means os.Hostname.
	Hostname func() (string, error)
	// NodeAddresses are the machine's own addresses; networks of the cluster must not hold them.
	NodeAddresses []netip.Addr
	// Parts are the names that disable accepts; nil means DefaultParts.
	Parts []string
	// CheckArg judges one name=value of a …-arg key: component is kubelet, kube-apiserver, kube-controller-manager
	// or kube-scheduler. An error refuses it; a *Problem's Next becomes the next action. nil accepts everything.
	CheckArg func(component, name, value string) error
}

// DefaultParts are the bundled parts that can be switched off.
func DefaultParts() []string { return []string{"dns", "storage", "metrics-server", "network"} }

// Load reads all layers (defaults, config.yaml, drop-ins, environment, flags; a later one wins), gives every value
// its type and checks the whole. The error is a Problems with everything that is wrong. The Config is never nil: it
// holds whatever could be understood, which is enough for commands that only look.
func Load(o LoadOptions) (*Config, error) {
	if o.Role == 0 {
		o.Role = Server
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.Hostname == nil {
		o.Hostname = os.Hostname
	}
	if o.Parts == nil {
		o.Parts = DefaultParts()
	}
	l := &loader{role: o.Role, schema: newSchema(), config: &Config{origins: map[string][]Origin{}}}
	l.defaults()

	fromFlags := flagAssignments(o.Flags)
	fromEnv, problems := envAssignments(o.Env, l.schema)
	files := o.Files
	if files == nil {
		// Only these two may name the main file.
		l.apply(only(fromEnv, "config"))
		l.apply(only(fromFlags, "config"))
		var err *Problem
		if files, err = l.files(); err != nil {
			l.problems = append(l.problems, err)
		}
	}
	l.config.files = files
	for _, file := range files {
		as, ps := readFile(file)
		l.problems = append(l.problems, ps...)
		l.apply(as)
	}
	l.problems = append(l.problems, problems...)
	l.apply(without(fromEnv, "config"))
	l.apply(without(fromFlags, "config"))
	l.derive(o)
	l.problems = append(l.problems, validate(l.config, o, l.complained)...)
	l.config.completeDNS()
	return l.config, l.problems.err()
}

// Default is the configuration of a machine without any file, flag or variable, for tests and documentation.
func Default() *Config {
	c, _ := Load(LoadOptions{Env: []string{}, Files: []string{}, Hostname: func() (string, error) { return "localhost", nil }})
	return c
}

type loader struct {
	role     Role
	schema   schema
	config   *Config
	problems Problems
}

func (l *loader) defaults() {
	for _, k := range l.schema {
		if k.Default == "" {
			continue
		}
		if err := k.field(l.config).set(k.Default); err != nil {
			panic("config: bad default of " + k.Name + ": " + err.Error()) // a mistake in the schema; tests find it
		}
	}
}

// files is the main file, when it is there, and the drop-ins.
func (l *loader) files() ([]string, *Problem) {
	main := l.config.ConfigFile
	var out []string
	if _, err := os.Stat(main); err == nil || l.config.IsSet("config") || !errors.Is(err, fs.ErrNotExist) {
		out = append(out, main)
	}
	more, err := dropIns(main)
	if errors.Is(err, fs.ErrPermission) && len(out) > 0 && !readable(main) {
		return out, nil // the main file is going to say so
	}
	if err != nil {
		return out, &Problem{Origin: Origin{Kind: FromFile, File: main + ".d"},
			Cause: "the folder cannot be read: " + plainError(err), Next: readNext(err)}
	}
	return append(out, more...), nil
}

func readable(file string) bool {
	f, err := os.Open(file)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}

// apply sets the keys of one layer.
func (l *loader) apply(as []assignment) {
	for _, a := range as {
		k := l.schema.find(a.key)
		switch {
		case k == nil:
			p := unknownKey(a.key, l.schema.names(), "see kombi config show for all keys")
			l.refuse(a.origin, a.key, p)
		case k.Name == "config" && a.origin.Kind == FromFile:
			l.refuse(a.origin, a.key, complain("remove the key", "a configuration file cannot name another"))
		case a.origin.Kind == FromFile && k.Roles&l.role == 0:
			l.refuse(a.origin, a.key, complain("remove it from this file", "the key belongs to a server, and this is an agent"))
		case a.append && !k.List:
			l.refuse(a.origin, a.key, complain("write "+a.key+": without '+'", "the key takes one value, so nothing can be appended"))
		case !k.List && !a.scalar:
			l.refuse(a.origin, a.key, complain("give one value", "the value is a list, and the key takes one %s", k.Kind))
		default:
			l.set(k, a)
		}
	}
}

func (l *loader) set(k *Key, a assignment) {
	field := k.field(l.config)
	if a.append && k.Default != "" && len(l.config.origins[k.Name]) == 0 {
		l.config.origins[k.Name] = []Origin{{Kind: FromDefault}} // what is appended to
	}
	if !a.append {
		if k.List {
			field.reset()
		}
		l.config.origins[k.Name] = nil
	}
	for _, v := range a.values {
		if p := wrongType(k, v); p != nil {
			l.refuse(v.origin, k.Name, p)
			continue
		}
		for _, part := range k.split(v.text) {
			if err := field.set(part); err != nil {
				l.refuse(v.origin, k.Name, err)
				continue
			}
			l.config.origins[k.Name] = append(l.config.origins[k.Name], v.origin)
		}
	}
	if k.List && len(l.config.origins[k.Name]) == 0 { // an empty list has a place as well
		l.config.origins[k.Name] = []Origin{a.origin}
	}
}

// wrongType refuses a YAML value of another type than the key's. Numbers are fine as texts: a token may be one.
func wrongType(k *Key, v valueAt) *Problem {
	switch {
	case v.tag == "!!bool" && !k.bool:
		return complain("give a value of that kind, in quotes if it is meant", "%s is true or false, and the key takes a %s", v.text, k.Kind)
	case k.bool && v.tag != "" && v.tag != "!!bool" && v.tag != "!!str":
		return complain("give true or false", "%s is a number", v.text)
	}
	return nil
}

func (l *loader) refuse(at Origin, key string, err error) {
	l.problems = append(l.problems, place(err, at, key))
}

// place fills in where a problem was found.
func place(err error, at Origin, key string) *Problem {
	var p *Problem
	if !errors.As(err, &p) {
		p = &Problem{Cause: strings.TrimPrefix(err.Error(), key+": ")}
	}
	placed := *p
	placed.Origin, placed.Key = at, key
	return &placed
}

// derive fills in what follows from other values or from the machine.
func (l *loader) derive(o LoadOptions) {
	c := l.config
	if c.NodeName == "" && !l.complained("node-name") {
		host, err := o.Hostname()
		if err == nil {
			// As the kubelet does: a host name may have capitals, the name of a node may not.
			c.NodeName, err = nodeName(strings.ToLower(strings.TrimSpace(host)))
		}
		if err != nil {
			l.refuse(Origin{}, "node-name", complain("set node-name", "the machine's host name %q cannot be the name of a node", host))
		}
	}
	if c.RuntimeDir != "" {
		c.RuntimeDir = filepath.Clean(c.RuntimeDir)
	}
}

func (l *loader) complained(key string) bool {
	for _, p := range l.problems {
		if p.Key == key {
			return true
		}
	}
	return false
}

func only(as []assignment, key string) (out []assignment) {
	for _, a := range as {
		if a.key == key {
			out = append(out, a)
		}
	}
	return out
}

func without(as []assignment, key string) (out []assignment) {
	for _, a := range as {
		if a.key != key {
			out = append(out, a)
		}
	}
	return out
}

// completeDNS puts the DNS addresses into the order of the service networks, with the tenth address of those that have
// none. It comes after the checks, which judge what was written.
func (c *Config) completeDNS() {
	var all []netip.Addr
	for _, n := range c.ServiceCIDRs {
		i := slices.IndexFunc(c.ClusterDNS, n.Contains)
		switch {
		case i >= 0:
			all = append(all, c.ClusterDNS[i])
		case nthAddr(n, 10).IsValid():
			all = append(all, nthAddr(n, 10))
		}
	}
	c.ClusterDNS = all
}

// nthAddr is the n-th address of the network, or the zero Addr when the network is smaller.
func nthAddr(p netip.Prefix, n int) netip.Addr {
	a := p.Addr()
	for range n {
		a = a.Next()
	}
	if !p.Contains(a) {
		return netip.Addr{}
	}
	return a
}
