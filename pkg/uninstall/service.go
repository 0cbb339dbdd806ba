package uninstall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kombi-k8s/kombi/pkg/payload"
	"github.com/kombi-k8s/kombi/pkg/supervise"
)

// service is how a machine keeps one Kombi running.
type service interface {
	name() string
	command() []string // argument vector
	env() []string     // NAME=value
	stop(context.Context) error
	remove(context.Context) error
}

// services finds the services of this machine that start a Kombi: those with
// the data directory of o, and the others.
func services(o Options) (own, others []service) {
	var all []service
	units, _ := filepath.Glob(filepath.Join(o.Root, "/etc/systemd/system/kombi*.service"))
	for _, u := range units {
		all = append(all, systemd{path: u, root: o.Root})
	}
	scripts, _ := filepath.Glob(filepath.Join(o.Root, "/etc/init.d/kombi*"))
	for _, s := range scripts {
		all = append(all, openrc{path: s, root: o.Root})
	}
	for _, s := range supervise.Services(o.Root) {
		all = append(all, supervised{s})
	}
	for _, s := range all {
		env := s.env()
		getenv := func(key string) string {
			value := ""
			for _, kv := range env {
				if v, ok := strings.CutPrefix(kv, key+"="); ok {
					value = v
				}
			}
			return value
		}
		if payload.DataDir(s.command(), getenv) == o.DataDir {
			own = append(own, s)
		} else {
			others = append(others, s)
		}
	}
	return own, others
}

const commandTimeout = 2 * time.Minute

// tool runs a service manager's command and puts what it said in the error.
func tool(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func removeFiles(paths ...string) error {
	var errs []error
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

type systemd struct{ path, root string }

func (s systemd) name() string    { return strings.TrimSuffix(filepath.Base(s.path), ".service") }
func (s systemd) envFile() string { return s.path + ".env" }
func (s systemd) env() []string   { return envFile(s.envFile()) }

func (s systemd) command() []string {
	unit, _ := os.ReadFile(s.path)
	text := strings.ReplaceAll(string(unit), "\\\n", " ")
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok {
			return words(command)
		}
	}
	return nil
}

// running says whether systemd is this machine's init; see sd_booted(3).
func (s systemd) running() bool {
	_, err := os.Stat(filepath.Join(s.root, "/run/systemd/system"))
	return err == nil && s.root == ""
}

func (s systemd) stop(ctx context.Context) error {
	if !s.running() {
		return nil
	}
	return tool(ctx, "systemctl", "disable", "--now", s.name()+".service")
}

func (s systemd) remove(ctx context.Context) error {
	wants, _ := filepath.Glob(filepath.Join(s.root, "/etc/systemd/system/*.wants", filepath.Base(s.path)))
	err := removeFiles(append(wants, s.path, s.envFile())...)
	if s.running() {
		_ = tool(ctx, "systemctl", "reset-failed", s.name()+".service") // fails when it did not fail
		err = errors.Join(err, tool(ctx, "systemctl", "daemon-reload"))
	}
	return err
}

type openrc struct{ path, root string }

func (s openrc) name() string    { return filepath.Base(s.path) }
func (s openrc) envFile() string { return filepath.Join(s.root, "/etc/conf.d", s.name()) }
func (s openrc) env() []string   { return envFile(s.envFile()) }

func (s openrc) command() []string {
	script, _ := os.ReadFile(s.path)
	program, args := "kombi", ""
	for line := range strings.Lines(string(script)) {
		if value, ok := strings.CutPrefix(line, "command="); ok {
			program = strings.Join(words(value), " ")
		} else if value, ok := strings.CutPrefix(line, "command_args="); ok {
			args = strings.Join(words(value), " ") // a quoted word that holds words
		}
	}
	return append([]string{program}, words(args)...)
}

func (s openrc) stop(ctx context.Context) error {
	if _, err := exec.LookPath("rc-service"); err != nil || s.root != "" {
		return nil
	}
	return tool(ctx, "rc-service", "--ifstarted", s.name(), "stop")
}

func (s openrc) remove(ctx context.Context) error {
	if _, err := exec.LookPath("rc-update"); err == nil && s.root == "" {
		_ = tool(ctx, "rc-update", "del", s.name(), "default") // fails when it was not added
	}
	levels, _ := filepath.Glob(filepath.Join(s.root, "/etc/runlevels/*", s.name()))
	return removeFiles(append(levels, s.path, s.envFile())...)
}

type supervised struct{ s supervise.Service }

func (s supervised) name() string { return s.s.Name }

func (s supervised) command() []string {
	args, _ := s.s.Command()
	return args
}

func (s supervised) env() []string {
	env, _ := s.s.Env()
	return env
}

func (s supervised) stop(context.Context) error { return s.s.Stop(commandTimeout) }

func (s supervised) remove(context.Context) error {
	err := removeFiles(s.s.ArgsFile(), s.s.EnvFile(), s.s.PIDFile())
	_ = os.Remove(filepath.Dir(s.s.ArgsFile())) // when empty
	return err
}

func envFile(path string) []string {
	b, _ := os.ReadFile(path)
	var env []string
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		env = append(env, name+"="+strings.Join(words(value), " "))
	}
	return env
}

// words splits like a shell: blanks separate, quotes and backslashes keep.
func words(s string) []string {
	var list []string
	var word strings.Builder
	var quote rune
	in, escaped := false, false
	for _, r := range s {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			in, escaped = true, true
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			in, quote = true, r
		case r == ' ' || r == '\t' || r == '\n':
			if in {
				list = append(list, word.String())
				word.Reset()
				in = false
			}
		default:
			in = true
			word.WriteRune(r)
		}
	}
	if in {
		list = append(list, word.String())
	}
	return list
}
