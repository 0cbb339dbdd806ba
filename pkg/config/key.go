package config

import "strings"

// Role is the set of programs that a key belongs to.
type Role int

// The programs that take configuration.
const (
	Server Role = 1 << iota
	Agent
)

// Key declares one setting: its name as a flag and in files, its type, its default and its help.
type Key struct {
	Name    string
	Group   string // heading under which help shows it
	Kind    string // what a value is, for help and errors: path, port, list, …
	Default string // as written in a file; empty when it is derived or nothing
	Help    string
	Roles   Role
	Secret  bool // never printed
	List    bool // may be given several times; key+ appends
	Short   string

	bool  bool
	lines bool // list elements may hold commas: only separate flags, YAML elements or lines separate them
	field func(*Config) value
}

// Env is the environment variable of the key: KOMBI_DATA_DIR for data-dir.
func (k *Key) Env() string { return EnvPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, "-", "_")) }

// EnvPrefix starts the name of every environment variable that is a key.
const EnvPrefix = "KOMBI_"

// schema is the table of keys in the order in which help shows them.
type schema []*Key

func (s schema) find(name string) *Key {
	for _, k := range s {
		if k.Name == name {
			return k
		}
	}
	return nil
}

func (s schema) names() []string {
	var out []string
	for _, k := range s {
		out = append(out, k.Name)
	}
	return out
}

// Keys returns all keys that the role takes, for help and documentation.
func Keys(role Role) []Key {
	var out []Key
	for _, k := range newSchema() {
		if k.Roles&role != 0 {
			out = append(out, *k)
		}
	}
	return out
}
