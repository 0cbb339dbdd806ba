package config

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// TestRefused lists what is refused; want is the whole error, problem by problem.
func TestRefused(t *testing.T) {
	check := func(component, name, value string) error {
		if component == "kubelet" && name == "evicton-hard" {
			return &Problem{Cause: "kubelet has no option evicton-hard", Next: "did you mean eviction-hard?"}
		}
		if value == "?" {
			return errors.New("no")
		}
		return nil
	}
	tests := []struct {
		name string
		fixture
		want []string
	}{
		{"unknown key", fixture{file: "data-dir: /a\ndata_dirr: /b\n"}, []string{"config.yaml:2: data_dirr: there is no such key; did you mean data-dir?"}},
		{"unknown key that is like nothing", fixture{file: "colour: red\n"}, []string{"config.yaml:1: colour: there is no such key; see kombi config show for all keys"}},
		{"key of k3s", fixture{file: "flannel-backend: none\n"}, []string{"config.yaml:1: flannel-backend: Kombi does not have this k3s key; use network-backend: auto, native or vxlan"}},
		{"unknown flag", fixture{flags: []string{"--https-listen-prot=1"}}, []string{"flag --https-listen-prot: there is no such key; did you mean https-listen-port?"}},
		{"unknown short flag", fixture{flags: []string{"-z"}}, []string{"flag -z: there is no such flag; see --help for all flags"}},
		{"flag without value", fixture{flags: []string{"--data-dir"}}, []string{"flag --data-dir: the value is missing; write --data-dir=<path>"}},
		{"variable that is nearly a key", fixture{env: []string{"KOMBI_DATADIR=/x"}}, []string{"environment KOMBI_DATADIR: there is no such key; did you mean KOMBI_DATA_DIR?"}},
		{"bad variable", fixture{env: []string{"KOMBI_MAX_PODS=many"}}, []string{`environment KOMBI_MAX_PODS: "many" is not a number; give a whole number from 1 to 1000`}},
		{"duplicate key", fixture{file: "max-pods: 1\ndebug: true\nmax-pods: 2\n"}, []string{"config.yaml:3: max-pods: the key was already set in line 1; keep one of the two"}},
		{"two documents", fixture{file: "max-pods: 1\n---\ndebug: true\n"}, []string{"config.yaml:2: a second YAML document begins here; put all keys in one document, or the second in a file in config.yaml.d"}},
		{"second document broken", fixture{file: "max-pods: 1\n---\n a: b\n c: [\n"}, []string{"config.yaml:4: this is not YAML"}},
		{"broken YAML", fixture{file: "max-pods: 1\ntls-san: [a, b\n"}, []string{"config.yaml:2: this is not YAML: did not find expected ',' or ']'; correct this line"}},
		{"bad indentation", fixture{file: "# comment\ndebug: true\nmax-pods: 3\n  data-dir: /x\nlog-level: info\n"}, []string{"config.yaml:4: this is not YAML"}},
		{"tab", fixture{file: "tls-san:\n\t- a\n"}, []string{"config.yaml:2: this is not YAML: found character that cannot start any token; correct this line"}},
		{"a list as file", fixture{file: "- a\n- b\n"}, []string{"config.yaml:1: the file holds a list where keys and values are expected; write lines such as: data-dir: /var/lib/kombi"}},
		{"a word as file", fixture{file: "debug\n"}, []string{"config.yaml:1: the file holds a single value where keys and values are expected; write lines such as: data-dir: /var/lib/kombi"}},
		{"list for one value", fixture{file: "data-dir:\n- /a\n- /b\n"}, []string{"config.yaml:1: data-dir: the value is a list, and the key takes one path; give one value"}},
		{"mapping for a value", fixture{file: "data-dir:\n  path: /a\n"}, []string{"config.yaml:2: data-dir: the value is a mapping; give one value or a list"}},
		{"mapping in a list", fixture{file: "node-label:\n- a: b\n"}, []string{"config.yaml:2: node-label: the list holds a mapping; give plain values"}},
		{"no value", fixture{file: "data-dir:\n"}, []string{"config.yaml:1: data-dir: there is no value; give a value, or remove the key"}},
		{"boolean for a path", fixture{file: "data-dir: true\n"}, []string{"config.yaml:1: data-dir: true is true or false, and the key takes a path; give a value of that kind, in quotes if it is meant"}},
		{"number for a boolean", fixture{file: "debug: 2\n"}, []string{"config.yaml:1: debug: 2 is a number; give true or false"}},
		{"word for a boolean", fixture{file: "debug: yes\n"}, []string{`config.yaml:1: debug: "yes" is not true or false; give true or false`}},
		{"append to one value", fixture{file: "max-pods+: 3\n"}, []string{"config.yaml:1: max-pods: the key takes one value, so nothing can be appended; write max-pods: without '+'"}},
		{"config in a file", fixture{file: "config: /x\n"}, []string{"config.yaml:1: config: a configuration file cannot name another; remove the key"}},
		{"port", fixture{file: "https-listen-port: 70000\n"}, []string{"config.yaml:1: https-listen-port: 70000 is out of range; give a whole number from 1 to 65535"}},
		{"port with unit", fixture{flags: []string{"--https-listen-port=6443/tcp"}}, []string{`flag --https-listen-port: "6443/tcp" is not a port; give a whole number from 1 to 65535`}},
		{"relative path", fixture{flags: []string{"--data-dir=kombi"}}, []string{`flag --data-dir: "kombi" is a relative path; give an absolute path`}},
		{"empty path", fixture{flags: []string{"--data-dir="}}, []string{"flag --data-dir: the path is empty; give an absolute path, or leave the key out"}},
		{"root as data-dir", fixture{flags: []string{"--data-dir=/"}}, []string{"flag --data-dir: the data directory cannot be the root of the file system; give a folder of its own, such as /var/lib/kombi"}},
		{"long data-dir", fixture{flags: []string{"--data-dir=/" + strings.Repeat("x", 80)}}, []string{"flag --data-dir: /xxx"}},
		{"data-dir with a comma", fixture{flags: []string{"--data-dir=/a,b"}}, []string{`flag --data-dir: "/a,b" holds a character that mount options cannot hold; choose a path of letters, digits, '-', '_', '.' and '/'`}},
		{"mode", fixture{flags: []string{"--write-kubeconfig-mode=rw"}}, []string{`flag --write-kubeconfig-mode: "rw" is not a file mode; give three octal digits such as 0600 or 0640`}},
		{"world-writable mode", fixture{flags: []string{"--write-kubeconfig-mode=666"}}, []string{`flag --write-kubeconfig-mode: with mode "666" everybody can change the file; give three octal digits such as 0600 or 0640`}},
		{"short token", fixture{flags: []string{"--token=secret"}}, []string{"flag --token: the token has only 6 characters, so it can be guessed; use 16 or more"}},
		{"token with a space", fixture{flags: []string{"--token=0123456789 abcdef"}}, []string{"flag --token: the token holds the character ' '; use 16 or more"}},
		{"token twice", fixture{flags: []string{"--token=0123456789abcdef", "--token-file=/proc/self/comm"}}, []string{"flag --token-file: token and token-file are both set; keep one of the two"}},
		{"not a network", fixture{flags: []string{"--cluster-cidr=10.42.0.0"}}, []string{`flag --cluster-cidr: "10.42.0.0" is not a network in CIDR form; give a network such as 10.42.0.0/16 or fd42::/56`}},
		{"host bits", fixture{flags: []string{"--cluster-cidr=10.42.0.1/16"}}, []string{"flag --cluster-cidr: 10.42.0.1/16 is an address inside a network, not a network; write 10.42.0.0/16"}},
		{"overlap", fixture{file: "service-cidr: 10.42.128.0/17\n"}, []string{"config.yaml:1: service-cidr: cluster-cidr 10.42.0.0/16 and service-cidr 10.42.128.0/17 overlap; choose two networks that do not overlap"}},
		{"own address", fixture{flags: []string{"--cluster-cidr=192.0.2.0/24"}}, []string{"flag --cluster-cidr: 192.0.2.0/24 contains this machine's own address 192.0.2.2; choose a network that the machine does not use"}},
		{"loopback network", fixture{flags: []string{"--cluster-cidr=127.0.0.0/16"}}, []string{"flag --cluster-cidr: 127.0.0.0/16 overlaps 127.0.0.0/8, which is reserved (loopback); choose a private network such as 10.42.0.0/16"}},
		{"small network", fixture{flags: []string{"--cluster-cidr=10.42.0.0/28"}}, []string{"flag --cluster-cidr: 10.42.0.0/28 has an unusable size; choose a prefix length from /8 to /24"}},
		{"dns outside", fixture{flags: []string{"--cluster-dns=10.44.0.10"}}, []string{"flag --cluster-dns: cluster-dns 10.44.0.10 is outside service-cidr 10.43.0.0/16; choose an address such as 10.43.0.10"}},
		{"dns taken", fixture{flags: []string{"--cluster-dns=10.43.0.1"}}, []string{"flag --cluster-dns: cluster-dns 10.43.0.1 is taken"}},
		{"port range", fixture{flags: []string{"--service-node-port-range=32767-30000"}}, []string{"flag --service-node-port-range: the range 32767-30000 ends before it begins; write 30000-32767"}},
		{"port in the range", fixture{flags: []string{"--https-listen-port=30001"}}, []string{"flag --https-listen-port: https-listen-port 30001 lies inside service-node-port-range 30000-32767; choose a port outside it, or move the range"}},
		{"one port twice", fixture{file: "kubelet-port: 6443\n"}, []string{"config.yaml:1: kubelet-port: https-listen-port and kubelet-port are both 6443; choose two ports"}},
		{"capitals in node-name", fixture{flags: []string{"--node-name=Edge-1"}}, []string{`flag --node-name: "Edge-1" has capitals, which the name of a node may not have; write edge-1`}},
		{"underscore in node-name", fixture{flags: []string{"--node-name=edge_1"}}, []string{`flag --node-name: "edge_1" is not a DNS name; use lower-case letters, digits, '-' and '.', at most 253 characters`}},
		{"capitals in cluster-domain", fixture{flags: []string{"--cluster-domain=Cluster.Local"}}, []string{`flag --cluster-domain: "Cluster.Local" has capitals`}},
		{"URL as tls-san", fixture{flags: []string{"--tls-san=https://a:6443"}}, []string{`flag --tls-san: "https://a:6443" is not a host name or address; give a name such as kombi.example.org or an address, without scheme and port`}},
		{"label", fixture{file: "node-label:\n- a=b\n- no value\n"}, []string{`config.yaml:3: node-label: the label "no value" has no value; write no value=<value>`}},
		{"reserved label", fixture{flags: []string{"--node-label=node-role.kubernetes.io/edge=true"}}, []string{"flag --node-label: a node may not give itself the label node-role.kubernetes.io/edge; use a prefix of your own, or kubectl label node edge-1 node-role.kubernetes.io/edge=true"}},
		{"taint", fixture{flags: []string{"--node-taint=a=b:Never"}}, []string{`flag --node-taint: "Never" is not the effect of a taint; write key=value:NoSchedule`}},
		{"disable", fixture{file: "disable: [dns, metric-server]\n"}, []string{`config.yaml:1: disable: "metric-server" is not a part that can be disabled; did you mean metrics-server?`}},
		{"disable what is not there", fixture{flags: []string{"--disable=traefik"}}, []string{"flag --disable: traefik is not part of Kombi, so there is nothing to disable; remove it from the list"}},
		{"component option", fixture{file: "kubelet-arg:\n- v=2\n- evicton-hard=x\n"}, []string{"config.yaml:3: kubelet-arg: kubelet has no option evicton-hard; did you mean eviction-hard?"}},
		{"component option without name", fixture{flags: []string{"--kubelet-arg==x"}}, []string{`flag --kubelet-arg: "=x" is not an option; write name=value`}},
		{"snapshotter", fixture{flags: []string{"--snapshotter=overlay"}}, []string{`flag --snapshotter: "overlay" is not known; did you mean overlayfs? give one of auto, overlayfs, native`}},
		{"secrets in the clear", fixture{flags: []string{"--secrets-encryption=false"}}, []string{"flag --secrets-encryption: Secrets are always encrypted at rest, which cannot be switched off; remove the key"}},
		{"debug against log-level", fixture{flags: []string{"--debug", "--log-level=warn"}}, []string{"flag --debug: debug and log-level warn contradict each other; keep one of the two"}},
		{"everything at once", fixture{
			file: "max-pods: 0\nnope: 1\n", env: []string{"KOMBI_LOG_FORMAT=xml"}, flags: []string{"--node-name=A", "--disable=x"}},
			[]string{"config.yaml:1: max-pods: 0 is out of range", "config.yaml:2: nope: there is no such key",
				`environment KOMBI_LOG_FORMAT: "xml" is not known`, `flag --node-name: "A" has capitals`, `flag --disable: "x" is not a part`}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := tc.load(t, LoadOptions{CheckArg: check, NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}})
			if err == nil {
				t.Fatal("accepted")
			}
			got := strings.Split(err.Error(), "\n")
			if len(got) != len(tc.want) {
				t.Fatalf("%d problems, want %d:\n%s", len(got), len(tc.want), err)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], tc.want[i]) {
					t.Errorf("got  %s\nwant %s", got[i], tc.want[i])
				}
			}
		})
	}
}

func TestHostNameThatIsNoNodeName(t *testing.T) {
	_, err := fixture{}.load(t, LoadOptions{Hostname: func() (string, error) { return "my_box", nil }})
	if err == nil || err.Error() != `node-name: the machine's host name "my_box" cannot be the name of a node; set node-name` {
		t.Errorf("got %v", err)
	}
}

func TestUnreadableFile(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct{ path, want string }{
		{dir, ": the file cannot be read: it is a folder; correct the path"},
		{dir + "/none.yaml", "/none.yaml: the file cannot be read: no such file or directory; correct the path"},
	} {
		_, err := Load(LoadOptions{Env: []string{"KOMBI_CONFIG=" + tc.path}})
		if err == nil || err.Error() != strings.TrimSuffix(dir, "/")+tc.want {
			t.Errorf("%s: %v", tc.path, err)
		}
	}
	big := dir + "/big.yaml"
	write(t, big, "#")
	if err := os.Truncate(big, 2<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(LoadOptions{Env: []string{"KOMBI_CONFIG=" + big}}); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("big file: %v", err)
	}
}

func TestTokenFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/good", " 0123456789abcdef\n")
	write(t, dir+"/empty", "\n")
	write(t, dir+"/short", "abc\n")
	for _, tc := range []struct{ file, want string }{
		{"good", ""},
		{"none", "the file cannot be read: no such file or directory; correct the path, or write the token into it"},
		{"empty", "the file " + dir + "/empty is empty; write the token into it, or remove the key to have one made"},
		{"short", "the token has only 3 characters, so it can be guessed; use 16 or more letters, digits, '.', '_', ':' and '-', for example from: openssl rand -hex 32"},
	} {
		f := fixture{flags: []string{"--token-file=" + dir + "/" + tc.file}}
		c, err := f.load(t, LoadOptions{})
		got := ""
		if err != nil {
			got = strings.TrimPrefix(err.Error(), "flag --token-file: ")
		}
		if got != tc.want {
			t.Errorf("%s: %q", tc.file, got)
		}
		if secret, err := c.ReadToken(); tc.want == "" && (secret != "0123456789abcdef" || err != nil) {
			t.Errorf("ReadToken: %q, %v", secret, err)
		}
	}
}

func TestOtherVariablesAreLeftAlone(t *testing.T) {
	env := []string{"KOMBI_BIN=/x", "KOMBI_BIN_DIR=/x", "KOMBI_LAUNCHER=/x", "KOMBI_SUPERVISE_READY=1", "KOMBI_PORT=tcp://10.43.0.5:80", "KOMBI_SERVICE_HOST=10.43.0.5", "KOMBI_PORT_80_TCP_PROTO=tcp"}
	if _, err := (fixture{env: env}).load(t, LoadOptions{}); err != nil {
		t.Error(err)
	}
}

func TestSuggest(t *testing.T) {
	names := newSchema().names()
	for word, want := range map[string]string{
		"datadir": "data-dir", "tls-sans": "tls-san", "write_kubeconfig": "write-kubeconfig", "nodename": "node-name",
		"clustercidr": "cluster-cidr", "bind-addresss": "bind-address", "xyzzy": "", "": "", "snapshoter": "snapshotter",
		"advertise": "advertise-address", "cluster": "",
	} {
		if got := Suggest(word, names); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", word, got, want)
		}
	}
}
