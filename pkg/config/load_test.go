package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// fixture is one set of layers to load from.
type fixture struct {
	file    string
	dropIns map[string]string
	env     []string
	flags   []string
}

func (f fixture) load(t *testing.T, o LoadOptions) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	main := filepath.Join(dir, "config.yaml")
	if f.file != "" {
		write(t, main, f.file)
	}
	for name, text := range f.dropIns {
		write(t, filepath.Join(main+".d", name), text)
	}
	fs := pflag.NewFlagSet("kombi", pflag.ContinueOnError)
	BindFlags(fs, Server)
	if err := fs.Parse(f.flags); err != nil {
		return nil, ExplainFlagError(fs, err)
	}
	o.Flags = fs
	o.Env = append([]string{"KOMBI_CONFIG=" + main, "PATH=/bin"}, f.env...)
	if f.file == "" {
		o.Files, _ = dropIns(main)
		if o.Files == nil {
			o.Files = []string{}
		}
	}
	if o.Hostname == nil {
		o.Hostname = func() (string, error) { return "Edge-1", nil }
	}
	c, err := Load(o)
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), dir+"/", ""))
	}
	return c, err
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDefaults(t *testing.T) {
	c, err := fixture{}.load(t, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c.DataDir != "/var/lib/kombi" || c.RunDir() != "/run/kombi" || c.HTTPSListenPort != 6443 ||
		c.WriteKubeconfigMode != 0o600 || !c.SecretsEncryption || c.MaxPods != 110 {
		t.Errorf("unexpected defaults: %+v", c)
	}
	if got := fmt.Sprint(c.ClusterCIDRs, c.ServiceCIDRs, c.ClusterDNS, c.NodeIPs); got != "[10.42.0.0/16] [10.43.0.0/16] [10.43.0.10] []" {
		t.Errorf("networks: %s", got)
	}
	if c.NodeName != "edge-1" {
		t.Errorf("node-name = %q, want the host name in lower case", c.NodeName)
	}
	if c.CgroupRootPath() != "/kombi" || c.Paths().BPF != "/sys/fs/bpf/kombi" || c.Paths().PodLogs != "/var/log/pods" {
		t.Errorf("global names of the default instance: %q %q", c.CgroupRootPath(), c.Paths().BPF)
	}
}

func TestALaterLayerWins(t *testing.T) {
	f := fixture{
		file:    "max-pods: 1\nhttps-listen-port: 7001\nlog-level: warn\ncluster-domain: one.local\n",
		dropIns: map[string]string{"10.yaml": "https-listen-port: 7002\nlog-level: error\n", "20.yaml": "log-level: debug\n"},
		env:     []string{"KOMBI_LOG_LEVEL=info", "KOMBI_CLUSTER_DOMAIN=two.local", "KOMBI_TOKEN="},
		flags:   []string{"--cluster-domain=three.local"},
	}
	c, err := f.load(t, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxPods != 1 || c.HTTPSListenPort != 7002 || c.LogLevel != "info" || c.ClusterDomain != "three.local" {
		t.Errorf("got %d %d %s %s", c.MaxPods, c.HTTPSListenPort, c.LogLevel, c.ClusterDomain)
	}
	for key, want := range map[string]string{
		"max-pods": "config.yaml:1", "https-listen-port": "config.yaml.d/10.yaml:1", "log-level": "environment KOMBI_LOG_LEVEL",
		"cluster-domain": "flag --cluster-domain", "data-dir": "default",
	} {
		if got := c.Origins(key)[0].String(); !strings.HasSuffix(got, want) {
			t.Errorf("%s comes from %s, want %s", key, got, want)
		}
	}
}

func TestListsReplaceOrAppend(t *testing.T) {
	f := fixture{
		file: "tls-san: a.example,b.example\nnode-label:\n- x=1\ndisable: coredns\nkubelet-arg: [\"eviction-hard=memory.available<1%,nodefs.available<5%\"]\n",
		dropIns: map[string]string{
			"10.yaml": "tls-san+: [c.example]\nnode-label: [y=2]\n",
			"20.yaml": "disable+: local-storage\nkubelet-arg+: --v=4\n",
		},
	}
	c, err := f.load(t, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		got, want []string
	}{
		{"tls-san", c.TLSSAN, []string{"a.example", "b.example", "c.example"}},
		{"node-label", c.NodeLabel, []string{"y=2"}},
		{"disable", c.Disable, []string{"dns", "storage"}},
		{"kubelet-arg", c.KubeletArg, []string{"eviction-hard=memory.available<1%,nodefs.available<5%", "v=4"}},
	} {
		if !reflect.DeepEqual(tc.got, tc.want) {
			t.Errorf("%s = %q, want %q", tc.name, tc.got, tc.want)
		}
	}
	if got := c.Origins("tls-san"); len(got) != 3 || !strings.HasSuffix(got[2].File, "10.yaml") {
		t.Errorf("origins of tls-san: %v", got)
	}
	c, err = fixture{env: []string{"KOMBI_TLS_SAN=a.example, b.example", "KOMBI_KUBELET_ARG=a=1,2\nb=3"}}.load(t, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.TLSSAN) != 2 || !reflect.DeepEqual(c.KubeletArg, []string{"a=1,2", "b=3"}) {
		t.Errorf("from the environment: %q %q", c.TLSSAN, c.KubeletArg)
	}
}

func TestFlagsAndFileMeanTheSame(t *testing.T) {
	file := "# comment\ndata-dir: /srv/kombi\ndebug: true\nwrite-kubeconfig-mode: 0640\ntoken: 1234567890123456789\nservice-cidr: 10.96.0.0/12\n"
	a, err := fixture{file: file}.load(t, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := fixture{flags: []string{"--data-dir", "/srv/kombi/", "--debug", "--write-kubeconfig-mode=640",
		"-t", "1234567890123456789", "--service-cidr=10.96.0.0/12"}}.load(t, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sa, sb := a.Settings(Server), b.Settings(Server)
	for i := range sa {
		if sa[i].Key != "config" && !reflect.DeepEqual(sa[i].Value, sb[i].Value) {
			t.Errorf("%s: file %v, flags %v", sa[i].Key, sa[i].Value, sb[i].Value)
		}
	}
	if a.ClusterDNS[0].String() != "10.96.0.10" || a.RunDir() != "/srv/kombi/run" || a.Instance() == "" {
		t.Errorf("derived: %v %v %q", a.ClusterDNS, a.RunDir(), a.Instance())
	}
}

func TestSecretsAreMasked(t *testing.T) {
	c, err := fixture{flags: []string{"--token=abcdefghijklmnopqrst"}}.load(t, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Settings(Server) {
		if s.Key == "token" && s.Value != Mask {
			t.Errorf("token is shown as %v", s.Value)
		}
	}
}

func TestEveryKeyBelongsToAFieldOfItsOwn(t *testing.T) {
	c := Default()
	seen := map[any]string{}
	for _, k := range newSchema() {
		var field any = reflect.ValueOf(k.field(c)).Elem().FieldByName("field").Pointer()
		if other := seen[field]; other != "" {
			t.Errorf("%s and %s share a field", k.Name, other)
		}
		seen[field] = k.Name
		if k.Help == "" || k.Group == "" || k.Kind == "" || k.Roles == 0 {
			t.Errorf("%s is not described", k.Name)
		}
	}
}

func TestPathsAreInsideTheDataDirectory(t *testing.T) {
	c := Default()
	c.DataDir = "/srv/k"
	p := reflect.ValueOf(c.Paths())
	seen := map[string]string{}
	for i := range p.NumField() {
		name, path := p.Type().Field(i).Name, p.Field(i).String()
		if path == "" {
			continue
		}
		if other := seen[path]; other != "" {
			t.Errorf("%s and %s are both %s", name, other, path)
		}
		seen[path] = name
		if name != "BPF" && name != "Kubeconfig" && !strings.HasPrefix(path, "/srv/k") {
			t.Errorf("%s = %s is outside the data directory", name, path)
		}
	}
}
