package config

import "fmt"

// OriginKind is the sort of place, from the weakest to the strongest.
type OriginKind int

// The places a value can come from; a later one wins over an earlier one.
const (
	FromDefault OriginKind = iota
	FromFile
	FromEnv
	FromFlag
)

// Origin is where a value was written.
type Origin struct {
	Kind OriginKind
	File string
	Line int
	Name string // of the environment variable or flag
}

// String is "default", "/etc/kombi/config.yaml:3", "environment KOMBI_DEBUG" or "flag --debug".
func (o Origin) String() string {
	switch o.Kind {
	case FromFile:
		if o.Line == 0 {
			return o.File
		}
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	case FromEnv:
		return "environment " + o.Name
	case FromFlag:
		return "flag --" + o.Name
	}
	return "default"
}

// where is the beginning of a sentence about the key: flags and variables name their key themselves.
func (o Origin) where(key string) string {
	switch {
	case o.Kind == FromFile && key != "":
		return o.String() + ": " + key
	case o.Kind == FromDefault:
		return key
	}
	return o.String()
}

// Origins tells where each element of the key's value came from (one for a key that is not a list).
func (c *Config) Origins(key string) []Origin {
	if got := c.origins[key]; len(got) > 0 {
		return got
	}
	return []Origin{{Kind: FromDefault}}
}

// IsSet reports whether anybody set the key, as opposed to its default.
func (c *Config) IsSet(key string) bool { return c.Origins(key)[0].Kind != FromDefault }

// Setting is one key with its value, for people and tools.
type Setting struct {
	Key     string
	Group   string
	Value   any // string, int, bool or []string; secrets are masked
	Origins []Origin
}

// Mask is what stands in place of a secret.
const Mask = "********"

// Settings lists every key of the role with its value and origin, in the order of the schema, secrets masked.
func (c *Config) Settings(role Role) []Setting {
	var out []Setting
	for _, k := range newSchema() {
		if k.Roles&role == 0 {
			continue
		}
		v := k.field(c).get()
		if k.Secret && v != "" {
			v = Mask
		}
		out = append(out, Setting{Key: k.Name, Group: k.Group, Value: v, Origins: c.Origins(k.Name)})
	}
	return out
}
