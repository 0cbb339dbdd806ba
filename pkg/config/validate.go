package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// checker collects the problems of values that are right alone and wrong together.
type checker struct {
	c        *Config
	bad      func(key string) bool // the key's own value was already refused
	problems Problems
}

// ok reports that none of the keys was refused, so that a sentence about them together makes sense.
func (v *checker) ok(keys ...string) bool {
	for _, k := range keys {
		if v.bad(k) {
			return false
		}
	}
	return true
}

// refuse blames the key; index picks the element of a list.
func (v *checker) refuse(key string, index int, next, cause string, args ...any) {
	origins := v.c.Origins(key)
	at := origins[0]
	if index < len(origins) {
		at = origins[index]
	}
	v.problems = append(v.problems, place(complain(next, cause, args...), at, key))
}

// blame is the key that somebody set among those that conflict: the defaults are not at fault.
func (v *checker) blame(keys ...string) string {
	for _, k := range keys {
		if v.c.IsSet(k) {
			return k
		}
	}
	return keys[0]
}

// validate checks the whole. It is pure: facts about the machine come with the options.
func validate(c *Config, o LoadOptions, bad func(key string) bool) Problems {
	v := &checker{c: c, bad: bad}
	v.networks(o)
	v.ports()
	v.parts(o.Parts)
	v.labels()
	v.args(o.CheckArg)
	v.paths()
	if c.Token != "" && c.TokenFile != "" {
		v.refuse("token-file", 0, "keep one of the two", "token and token-file are both set")
	} else if _, err := c.ReadToken(); err != nil && !errors.Is(err, fs.ErrPermission) { // commands that only look may run as anybody
		v.problems = append(v.problems, place(err, c.Origins("token-file")[0], "token-file"))
	}
	if c.Debug && c.IsSet("log-level") && c.LogLevel != "debug" {
		v.refuse("debug", 0, "keep one of the two", "debug and log-level %s contradict each other", c.LogLevel)
	}
	if !c.SecretsEncryption {
		v.refuse("secrets-encryption", 0, "remove the key", "Secrets are always encrypted at rest, which cannot be switched off")
	}
	return v.problems
}

func (v *checker) ports() {
	c := v.c
	if v.ok("https-listen-port", "kubelet-port") && c.HTTPSListenPort == c.KubeletPort {
		v.refuse(v.blame("kubelet-port", "https-listen-port"), 0, "choose two ports", "https-listen-port and kubelet-port are both %d", c.KubeletPort)
	}
	for _, p := range []struct {
		key  string
		port int
	}{{"https-listen-port", c.HTTPSListenPort}, {"kubelet-port", c.KubeletPort}} {
		if v.ok(p.key, "service-node-port-range") && c.ServiceNodePortRange.Contains(p.port) {
			v.refuse(v.blame(p.key, "service-node-port-range"), 0, "choose a port outside it, or move the range",
				"%s %d lies inside service-node-port-range %s", p.key, p.port, c.ServiceNodePortRange)
		}
	}
	if c.ServiceNodePortRange.First < 1024 {
		v.refuse("service-node-port-range", 0, "begin at 1024 or above", "%s takes ports that system services use", c.ServiceNodePortRange)
	}
}

// parts translates the k3s names in disable and refuses what is not a part.
func (v *checker) parts(known []string) {
	alias := map[string]string{"coredns": "dns", "local-storage": "storage"}
	absent := map[string]bool{"traefik": true, "servicelb": true, "runtimes": true}
	for i, name := range v.c.Disable {
		if a, ok := alias[name]; ok {
			name = a
			v.c.Disable[i] = a
		}
		switch {
		case contains(known, name):
		case absent[name]:
			v.refuse("disable", i, "remove it from the list", "%s is not part of Kombi, so there is nothing to disable", name)
		default:
			next := "choose from " + strings.Join(known, ", ")
			if near := Suggest(name, known); near != "" {
				next = "did you mean " + near + "?"
			}
			v.refuse("disable", i, next, "%q is not a part that can be disabled", name)
		}
	}
}

func (v *checker) labels() {
	seen := map[string]bool{}
	for i, label := range v.c.NodeLabel {
		key, _, _ := strings.Cut(label, "=")
		if seen[key] {
			v.refuse("node-label", i, "keep one of the two", "the label %s is given twice", key)
		}
		seen[key] = true
		prefix, _, hasPrefix := strings.Cut(key, "/")
		reserved := hasPrefix && (prefix == "kubernetes.io" || strings.HasSuffix(prefix, ".kubernetes.io") ||
			prefix == "k8s.io" || strings.HasSuffix(prefix, ".k8s.io"))
		if reserved && !kubeletapis.IsKubeletLabel(key) {
			v.refuse("node-label", i, "use a prefix of your own, or kubectl label node "+v.c.NodeName+" "+label,
				"a node may not give itself the label %s", key)
		}
	}
	seen = map[string]bool{}
	for i, taint := range v.c.NodeTaint {
		body, effect, _ := strings.Cut(taint, ":")
		key, _, _ := strings.Cut(body, "=")
		if seen[key+":"+effect] {
			v.refuse("node-taint", i, "keep one of the two", "the taint %s:%s is given twice", key, effect)
		}
		seen[key+":"+effect] = true
	}
}

func (v *checker) args(check func(component, name, value string) error) {
	for _, a := range []struct {
		component string
		args      []string
	}{
		{"kube-apiserver", v.c.KubeAPIServerArg}, {"kube-controller-manager", v.c.KubeControllerManagerArg},
		{"kube-scheduler", v.c.KubeSchedulerArg}, {"kubelet", v.c.KubeletArg},
	} {
		for i, arg := range a.args {
			name, val, _ := strings.Cut(arg, "=")
			if check == nil {
				continue
			}
			if err := check(a.component, name, val); err != nil {
				origins := v.c.Origins(a.component + "-arg")
				v.problems = append(v.problems, place(err, origins[min(i, len(origins)-1)], a.component+"-arg"))
			}
		}
	}
}

// maxSocketDir keeps the longest socket below the folder (a plugin's, 40 characters) within the kernel's 107.
const maxSocketDir = 64

func (v *checker) paths() {
	c := v.c
	if c.DataDir == "/" {
		v.refuse("data-dir", 0, "give a folder of its own, such as "+DefaultDataDir, "the data directory cannot be the root of the file system")
	}
	for _, d := range []struct{ key, dir string }{{"data-dir", c.DataDir}, {"run-dir", c.RuntimeDir}} {
		if dir := d.dir; len(dir) > maxSocketDir {
			v.refuse(d.key, 0, fmt.Sprintf("choose a path of at most %d characters", maxSocketDir),
				"%s is %d characters long, and sockets below it would exceed the kernel's limit", dir, len(dir))
		}
	}
	if strings.ContainsAny(c.DataDir, " :,\t\"'\\") {
		v.refuse("data-dir", 0, "choose a path of letters, digits, '-', '_', '.' and '/'", "%q holds a character that mount options cannot hold", c.DataDir)
	}
}
