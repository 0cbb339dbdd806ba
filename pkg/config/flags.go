package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// flagValue keeps what was typed; Load gives it its type, so that all errors are reported together.
type flagValue struct {
	key *Key
	raw []string
}

func (f *flagValue) String() string     { return strings.Join(f.raw, ",") }
func (f *flagValue) Set(s string) error { f.raw = append(f.raw, s); return nil }
func (f *flagValue) Type() string {
	if f.key.bool {
		return "bool"
	}
	return f.key.Kind
}

// BindFlags adds a flag for every key of the role, or only for the named keys when names are given: commands that
// talk to a running server need data-dir and config only.
func BindFlags(fs *pflag.FlagSet, role Role, names ...string) {
	for _, k := range newSchema() {
		if k.Roles&role == 0 || len(names) > 0 && !contains(names, k.Name) {
			continue
		}
		help := k.Help
		if k.Default != "" && k.Default != "false" {
			help += " (default: " + k.Default + ")"
		}
		short := k.Short
		if short != "" && fs.ShorthandLookup(short) != nil { // the command has its own meaning for the letter
			short = ""
		}
		flag := fs.VarPF(&flagValue{key: k}, k.Name, short, help)
		if k.bool {
			flag.NoOptDefVal = "true"
		}
	}
}

// ExplainFlagError turns an error of flag parsing into one sentence with a next action; cobra commands use it in
// SetFlagErrorFunc. Other errors are returned unchanged.
func ExplainFlagError(fs *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		origin := Origin{Kind: FromFlag, Name: name}
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			return &Problem{Cause: "flag -" + name + ": there is no such flag", Next: "see --help for all flags"}
		}
		var known []string
		fs.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		p := unknownKey(name, known, "see --help for all flags")
		p.Origin = origin
		return p
	case errors.As(err, &missing):
		return &Problem{Origin: Origin{Kind: FromFlag, Name: missing.GetFlag().Name}, Cause: "the value is missing",
			Next: "write --" + missing.GetFlag().Name + "=<" + missing.GetFlag().Value.Type() + ">"}
	}
	if errors.As(err, &invalid) {
		next := map[string]string{"duration": "give a time such as 30s or 5m", "bool": "give true or false", "int": "give a whole number"}
		what := invalid.GetFlag().Value.Type()
		return &Problem{Origin: Origin{Kind: FromFlag, Name: invalid.GetFlag().Name}, Next: next[what],
			Cause: fmt.Sprintf("%q is not a %s", invalid.GetValue(), what)}
	}
	return err
}

// flagAssignments returns what was typed on the command line.
func flagAssignments(fs *pflag.FlagSet) []assignment {
	var out []assignment
	if fs == nil {
		return nil
	}
	fs.Visit(func(f *pflag.Flag) {
		v, ours := f.Value.(*flagValue)
		if !ours {
			return
		}
		origin := Origin{Kind: FromFlag, Name: f.Name}
		a := assignment{key: f.Name, origin: origin, scalar: len(v.raw) == 1}
		for _, raw := range v.raw {
			a.values = append(a.values, valueAt{raw, "", origin})
		}
		if !v.key.List && len(a.values) > 1 { // the last one wins, as everywhere on a command line
			a.values, a.scalar = a.values[len(a.values)-1:], true
		}
		out = append(out, a)
	})
	return out
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}
